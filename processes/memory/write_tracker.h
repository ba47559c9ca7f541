// Finds the pages that a running process has written since the last look, without any help of the
// process: asynchronous write-protection (Linux 6.7) through a userfaultfd of the process, made
// from outside with two injected system calls. The kernel answers the faults itself, so no thread
// handles them and the process does not wait.
//
//   UFFDIO_REGISTER (write-protect)     the kernel tracks mappings
//   PAGEMAP_SCAN that protects          reports the pages written since, in one step
//
// Rejected: soft-dirty bits, for older kernels. The zero page that a process maps when it reads a
// discarded page is not soft-dirty, so an old copy would be taken for its content.
//
// The tracking ends when the object is destroyed, also if this process is killed. Nothing stays in
// the process.
#pragma once

#include <functional>
#include <vector>

#include "base/unique_fd.h"
#include "processes/memory/page_tables.h"
#include "processes/process_identity.h"

namespace ppmr {

// Threads: one.
class WriteTracker {
 public:
  // One thread of the process stands still for some hundred microseconds. Errors: those of
  // InjectedCalls; EOPNOTSUPP if the kernel cannot track.
  static Result<WriteTracker> attach(const ProcessIdentity& process);

  // Calls `visit` for the regions of `memory` that were written since the last call, and tracks
  // memory that was not tracked before: all of it counts as written. Errors: ESRCH if the process
  // has another address space now (execve) or has ended; EBUSY if the process uses userfaultfd
  // itself; those of PageTables.
  Status take_written(const std::vector<AddressRange>& memory,
                      const std::function<Status(const AddressRange& written)>& visit);

  // The next take_written() reports the range, whether it is written until then or not. Errors:
  // ENOENT for memory that is not tracked.
  Status count_as_written(const AddressRange& range) const;

 private:
  WriteTracker(pid_t pid, UniqueFd events) : pid_(pid), events_(std::move(events)) {}
  Status track(const AddressRange& range) const;
  Status take_written(PageTables& tables, const AddressRange& range,
                      const std::function<Status(const AddressRange& written)>& visit);

  pid_t pid_ = 0;
  UniqueFd events_;  // the userfaultfd
};

}  // namespace ppmr
