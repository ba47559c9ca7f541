// Finds the pages that a running process has written since the last look, without any help of the
// process. There are two ways:
//
// Asynchronous write-protection (Linux 6.7): a userfaultfd of the process, made from outside with
// two injected system calls. The kernel answers the faults itself, so no thread handles them, and
// nothing waits.
//
//   UFFDIO_REGISTER (write-protect)     mappings are tracked
//   PAGEMAP_SCAN that protects          reports the pages written since, in one step
//
// Soft-dirty bits (older kernels with CONFIG_MEM_SOFT_DIRTY, as Debian 12's): to read the bits and
// to clear them are two steps, so the process stands still in between, about 20 ms for each GiB.
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
  // InjectedCalls; EOPNOTSUPP if the kernel can track in neither way.
  static Result<WriteTracker> attach(const ProcessIdentity& process);

  // Calls `visit` for the regions of `memory` that were written since the last call, and tracks
  // memory that was not tracked before: all of it counts as written. Errors: ESRCH if the process
  // has another address space now (execve) or has ended; EBUSY if the process uses userfaultfd
  // itself; those of PageTables and of StoppedThread.
  Status take_written(const std::vector<AddressRange>& memory,
                      const std::function<Status(const AddressRange& written)>& visit);

 private:
  WriteTracker(pid_t pid, UniqueFd events) : pid_(pid), events_(std::move(events)) {}
  Status track(const AddressRange& span) const;
  Status take_soft_dirty(const std::vector<AddressRange>& memory,
                         std::vector<AddressRange>& written);
  Status take_written(PageTables& tables, const AddressRange& span,
                      const std::function<Status(const AddressRange& written)>& visit);

  pid_t pid_ = 0;
  UniqueFd events_;  // the userfaultfd; invalid: soft-dirty bits
  // Another tracker may have cleared bits before: the first look takes all pages.
  bool is_first_ = true;
};

}  // namespace ppmr
