// Tracks writes with soft-dirty bits, for kernels before Linux 6.7, and for later ones whose
// write-protection loses moved memory (write_protection.cc). Source:
// Documentation/admin-guide/mm/soft-dirty.rst of the kernel.
//
//   write "4" to /proc/PID/clear_refs   clears the bits of all pages, and protects the pages
//   bit 55 in /proc/PID/pagemap         the page was written since, or its mapping is new
//
// The tracker reads the bits in one step and clears them in another. Writes between the two steps
// would be lost, so all threads of the process stand still for both. Each step walks over the page
// tables of the process. The first look reports all pages, and needs no such stop.
//
// The kernel sets no bit if mremap(2) moves a whole page table. So a page also counts as written if
// it is not in the frame that it had at the last look (CleanFrames). A page that the kernel has
// moved to another frame is sent again.
//
// A process has only one set of bits. A program that clears them meanwhile hides writes: another
// ppmr, which a lock on the file excludes; `criu pre-dump`; and programs that look for their own
// writes in this way. The kernel hides writes when it merges equal pages (KSM), so check_kernel()
// refuses this setting.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "processes/memory/write_tracker.h"

namespace ppmr {

class SoftDirty : public WriteTracker {
 public:
  // Errors: EOPNOTSUPP; EBUSY (attach); EPERM without CAP_SYS_ADMIN, because the kernel then hides
  // the frames of pages. Without the frames, a page that was discarded and then read looks as if it
  // had not changed.
  static Status check_kernel();
  static Result<std::unique_ptr<WriteTracker>> attach(const ProcessIdentity& process);

  Status take_written(const std::vector<AddressRange>& memory, const Visit& visit) override;
  Status count_as_written(const AddressRange& range) const override;
  WriteRecord record() const override { return &frames_; }

 private:
  SoftDirty(pid_t pid, UniqueFd file) : pid_(pid), file_(std::move(file)) {}
  Status take_all(const std::vector<AddressRange>& memory, const Visit& visit);
  Status clear() const;

  pid_t pid_ = 0;
  UniqueFd file_;  // clear_refs of this process, locked
  CleanFrames frames_;
  bool are_cleared_ = false;
};

}  // namespace ppmr
