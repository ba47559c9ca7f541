// Processes that use RDMA and cooperate. Each has registered a socket (jobs/rdma_release.h).
// Through this socket ppmr asks the process to release its RDMA devices before the dump, and to
// resume afterwards.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "preflight/rdma_release/rdma_check.h"

namespace ppmr {

inline constexpr const char* kRdmaDevices = "/dev/infiniband/";

// The socket of a process. If several processes share a socket, the list has it once.
struct RdmaListener {
  pid_t pid = 0;
  // Name in the abstract namespace of the network namespace, without the first byte.
  std::string name;
};

// The time limit for the answer to "check". The library's own limit is 1 s.
inline constexpr std::chrono::milliseconds kRdmaCheckPatience{2500};

// Returns the sockets of these processes. Skips processes that have ended. Errors: EACCES, EPERM:
// no permission to inspect a process.
Result<std::vector<RdmaListener>> find_rdma_listeners(const std::vector<pid_t>& pids);

// Sends a request to one process, and returns when the process has carried it out. `request`:
// "release" or "resume". Errors: ETIMEDOUT; ECONNREFUSED: the process has ended; ECANCELED with the
// reason that the process gives.
Status ask_rdma_listener(const RdmaListener& listener, const std::string& request,
                         std::chrono::milliseconds patience);

// Asks one process what would prevent a release, and what it needs of the target's device. The
// process goes on as before. Errors: those of ask_rdma_listener(); ECANCELED also if its library
// does not know the request; EPROTO: another answer than jobs/rdma_release.h describes.
Result<RdmaCheck> check_rdma_listener(const RdmaListener& listener,
                                      std::chrono::milliseconds patience);

// Sends "check" to all processes at the same time. A process that does not answer in time has
// `silence`. Leaves out those that have ended, and those whose library does not know the request.
std::vector<RdmaCheck> check_rdma_listeners(
    const std::vector<RdmaListener>& listeners,
    std::chrono::milliseconds patience = kRdmaCheckPatience);

// Returns the registered processes of the trees if each of them reports shows-writes: after a
// release, the kernel counts what devices have written as written. Returns nullopt if no process
// has registered, or if one of them does not report this or does not answer.
std::optional<std::set<pid_t>> rdma_users_that_show_writes(
    const std::vector<pid_t>& roots, std::chrono::milliseconds patience = kRdmaCheckPatience);

// Checks that no process has a file below `devices` open or mapped, or receives events of such a
// device. Errors: EBUSY, which names the process, the file and the remedy; EACCES.
Status check_no_rdma(const std::vector<pid_t>& pids, const std::string& devices = kRdmaDevices);

// Asks all processes of the trees at the same time to release, and checks that they did. The
// processes may run in the meantime. Skips processes that have ended. Returns how many processes it
// asked. After an error the caller lets the trees resume. Errors: those of the functions above.
Result<size_t> release_rdma(const std::vector<pid_t>& roots, std::chrono::milliseconds patience,
                            const std::string& devices = kRdmaDevices);

// Lets the trees resume. Asks every process, also after a failure. Errors: the first failure.
Status resume_rdma(const std::vector<pid_t>& roots, std::chrono::milliseconds patience);

}  // namespace ppmr
