// Tracks writes with soft-dirty bits, for kernels before Linux 6.7:
// Documentation/admin-guide/mm/soft-dirty.rst of the kernel.
//
//   write "4" to /proc/PID/clear_refs   clears the bits of all pages, and protects the pages
//   bit 55 in /proc/PID/pagemap         the page was written since, or its mapping is new
//
// The bits are read in one step and cleared in another one, and what is written between the two
// would be lost. So all threads of the process stand still for both: 10 ms for each GiB. The first
// look takes all pages, and needs no such stop.
//
// A process has one set of bits. Others who clear them meanwhile hide writes: `criu pre-dump`, and
// programs that look for their own writes in this way. The kernel itself hides them when it merges
// equal pages (KSM), so attach() refuses that.
#pragma once

#include <memory>
#include <vector>

#include "processes/memory/write_tracker.h"

namespace ppmr {

class SoftDirty : public WriteTracker {
 public:
  // Errors: EPERM without the right to see frames of pages (CAP_SYS_ADMIN): without them, a page
  // that was discarded and then read looks as if it had not changed.
  static Result<std::unique_ptr<WriteTracker>> attach(const ProcessIdentity& process);

  Status take_written(const std::vector<AddressRange>& memory, const Visit& visit) override;
  Status count_as_written(const AddressRange& range) const override;

 private:
  explicit SoftDirty(const ProcessIdentity& process) : process_(process) {}
  Status take_all(const std::vector<AddressRange>& memory, const Visit& visit);
  Status clear() const;

  ProcessIdentity process_;
  bool are_cleared_ = false;
};

}  // namespace ppmr
