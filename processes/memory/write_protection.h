// Tracks writes with asynchronous write-protection (Linux 6.7), through a userfaultfd of the
// process, made from outside with two injected system calls. The kernel answers the faults itself,
// so no thread handles them and the process does not wait.
//
//   UFFDIO_REGISTER (write-protect)     the kernel tracks mappings
//   PAGEMAP_SCAN that protects          reports the pages written since, in one step
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "processes/memory/write_tracker.h"

namespace ppmr {

// Returns the ranges to track so that no mapping is tracked in part. That would split the mapping,
// and then mremap(2) fails for the process. The mappings may have changed since they were listed,
// and a new mapping may reach beyond the end of an old one. So the result is each space between two
// mappings of `others` that contains a part of `memory`. `memory`: all memory to track, up to the
// stack; nothing is mapped above the stack. `others`: the mappings not to track. Both are sorted.
std::vector<AddressRange> space_around(const std::vector<AddressRange>& memory,
                                       const std::vector<AddressRange>& others);

class WriteProtection : public WriteTracker {
 public:
  // Returns whether this kernel has asynchronous write-protection that follows memory which
  // mremap(2) moves. Tries it with a userfaultfd of this process, because a process that cannot be
  // tracked must not be disturbed.
  static bool is_possible();
  static Result<std::unique_ptr<WriteTracker>> attach(const ProcessIdentity& process);

  Status take_written(const std::vector<AddressRange>& memory, const Visit& visit) override;
  Status count_as_written(const AddressRange& range) const override;
  WriteRecord record() const override { return nullptr; }

 private:
  WriteProtection(pid_t pid, UniqueFd events) : pid_(pid), events_(std::move(events)) {}
  Status track(const AddressRange& range) const;
  Status track_around(const std::vector<AddressRange>& memory) const;
  // `range` is one of `memory`.
  Status take_written(PageTables& tables, const AddressRange& range,
                      const std::vector<AddressRange>& memory, const Visit& visit);

  pid_t pid_ = 0;
  UniqueFd events_;  // the userfaultfd
};

}  // namespace ppmr
