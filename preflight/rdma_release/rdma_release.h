// Processes that use RDMA and cooperate: they registered a socket (jobs/rdma_release.h) on which
// ppmr asks them to release their RDMA devices before the dump, and to resume afterwards.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

inline constexpr const char* kRdmaDevices = "/dev/infiniband/";

// The socket of a process. Processes that share it are listed once.
struct RdmaListener {
  pid_t pid = 0;
  std::string name;  // in the abstract namespace of its network namespace, without the first byte
};

// Skips processes that have ended. Errors: EACCES, EPERM: no permission to look into a process.
Result<std::vector<RdmaListener>> find_rdma_listeners(const std::vector<pid_t>& pids);

// Asks one process, and returns when it has done so. `request`: "release" or "resume". Errors:
// ETIMEDOUT; ECONNREFUSED: it has ended; ECANCELED with the reason that it gives.
Status ask_rdma_listener(const RdmaListener& listener, const std::string& request,
                         std::chrono::milliseconds patience);

// That none of the processes has a file below `devices` open or mapped, or receives events of such
// a device. Errors: EBUSY, which names the process, the file and the remedy; EACCES.
Status check_no_rdma(const std::vector<pid_t>& pids, const std::string& devices = kRdmaDevices);

// Asks all processes of the trees at the same time to release, and checks that they did. They may
// run meanwhile. Processes that have ended are skipped. Returns how many were asked. After an error
// the caller lets the trees resume. Errors: those of the functions above.
Result<size_t> release_rdma(const std::vector<pid_t>& roots, std::chrono::milliseconds patience,
                            const std::string& devices = kRdmaDevices);

// Lets the trees resume. All processes are asked, whatever fails. Errors: the first failure.
Status resume_rdma(const std::vector<pid_t>& roots, std::chrono::milliseconds patience);

}  // namespace ppmr
