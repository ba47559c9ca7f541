#include "processes/memory/write_tracker.h"

#include "processes/memory/soft_dirty.h"
#include "processes/memory/write_protection.h"

namespace ppmr {

Status WriteTracker::check_kernel() {
  return WriteProtection::is_possible() ? Status{} : SoftDirty::check_kernel();
}

Result<std::unique_ptr<WriteTracker>> WriteTracker::attach(const ProcessIdentity& process) {
  if (WriteProtection::is_possible()) return WriteProtection::attach(process);
  return SoftDirty::attach(process);
}

}  // namespace ppmr
