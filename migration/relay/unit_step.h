// Decides from the record of a migration what happens to the unit of systemd that moves with its
// processes (unit_fate.h).
#pragma once

#include "migration/records/ownership_record.h"

namespace ppmr {

enum class SourceUnitStep {
  kHold,             // systemd must not start the unit
  kRestore,          // the unit is as it was before the migration
  kRestoreAndStart,  // as kRestore, and started, as by the boot
  kRetire,           // the unit has left: it is inactive, and not started at boot
};
// `same_boot`: the node was not restarted since the record was made.
SourceUnitStep source_unit_step(const OwnershipRecord& record, bool same_boot);

enum class GuestStep {
  kWait,    // the processes are not here yet
  kAttach,  // they are restored, and must move into the control group of the unit
  kAdopt,   // they run, and process 1 is their parent: systemd can take over
  kEnd,     // the processes do not arrive
};
// Returns what the main process of the target's unit does next. `supervised`: a supervisor has not
// ended yet, and is the parent of a tree until then.
GuestStep guest_step(const OwnershipRecord& record, bool attached, bool supervised);

}  // namespace ppmr
