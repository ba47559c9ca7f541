// What happens to the unit of systemd that moves with its processes (unit_fate.h), decided from the
// record of its migration.
#pragma once

#include "migration/records/ownership_record.h"

namespace ppmr {

enum class SourceUnitStep {
  kHold,             // systemd must not start it
  kRestore,          // as it was before the migration
  kRestoreAndStart,  // the same, and it starts, as it would have at boot
  kRetire,           // inactive, and not started at boot: it has left
};
// `same_boot`: the node was not restarted since the record was made.
SourceUnitStep source_unit_step(const OwnershipRecord& record, bool same_boot);

enum class GuestStep {
  kWait,    // the processes are not here yet
  kAttach,  // they are restored, and must move into the control group of the unit
  kAdopt,   // they run, and process 1 is their parent: systemd can take over
  kEnd,     // they do not come
};
// What the main process of the target's unit does next. `supervised`: a supervisor may still end,
// and is the parent of a tree until then.
GuestStep guest_step(const OwnershipRecord& record, bool attached, bool supervised);

}  // namespace ppmr
