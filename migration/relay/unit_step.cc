#include "migration/relay/unit_step.h"

namespace ppmr {

SourceUnitStep source_unit_step(const OwnershipRecord& record, bool same_boot) {
  switch (record.state()) {
    case MigrationState::kFinished:
      return SourceUnitStep::kRetire;
    case MigrationState::kAborted:
      // A restart of the node has ended the processes, and did not start the unit.
      return same_boot || !record.unit.enabled ? SourceUnitStep::kRestore
                                               : SourceUnitStep::kRestoreAndStart;
    default:
      return SourceUnitStep::kHold;
  }
}

GuestStep guest_step(const OwnershipRecord& record, bool attached, bool supervised) {
  if (record.state() == MigrationState::kAborted || record.has_losses()) return GuestStep::kEnd;
  const bool restored = record.state() == MigrationState::kReady ||
                        record.state() == MigrationState::kRunning ||
                        record.state() == MigrationState::kFinished;
  if (!restored) return GuestStep::kWait;
  // Attaches the processes before they run, so that they never run outside of the unit's limits.
  if (!attached) return GuestStep::kAttach;
  return record.all_trees(TreePhase::kComplete) && !supervised ? GuestStep::kAdopt
                                                               : GuestStep::kWait;
}

}  // namespace ppmr
