// Finds the pages that a running process has written since the last look, without any help of the
// process. The kernel records the pages, and the process does not wait. There are two ways.
// attach() takes the first one that the kernel offers:
//
//   write_protection   asynchronous write-protection (Linux 6.13; 6.7 with a later fix)
//   soft_dirty         soft-dirty bits (older kernels with CONFIG_MEM_SOFT_DIRTY, as of Debian 12)
//
// The tracking ends when the object is destroyed, also if this process is killed. Nothing stays in
// the process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "processes/memory/page_tables.h"
#include "processes/process_identity.h"

namespace ppmr {

// Threads: one.
class WriteTracker {
 public:
  using Visit = std::function<Status(const AddressRange& written)>;

  // Threads of the process stand still for some hundred microseconds. Errors: EOPNOTSUPP if the
  // kernel cannot track; those of InjectedCalls and StoppedThread.
  static Result<std::unique_ptr<WriteTracker>> attach(const ProcessIdentity& process);
  // Checks that this kernel tracks writes for this user. Errors: EOPNOTSUPP, EPERM.
  static Status check_kernel();
  virtual ~WriteTracker() = default;

  // Calls `visit` for the regions of `memory` that were written since the last call, and tracks
  // memory that was not tracked before: all of it counts as written. Errors: ESRCH if the process
  // has another address space now (execve) or has ended; EBUSY if the process uses userfaultfd
  // itself; those of PageTables and StoppedThread.
  virtual Status take_written(const std::vector<AddressRange>& memory, const Visit& visit) = 0;

  // Makes the next take_written() report the range, even if the process does not write to it.
  // Errors: ENOENT for memory that is not tracked; EOPNOTSUPP if the kernel offers no way.
  virtual Status count_as_written(const AddressRange& range) const = 0;

  // Returns where to look up the pages that were written since the last take_written(). Valid until
  // the next one.
  virtual WriteRecord record() const = 0;
};

}  // namespace ppmr
