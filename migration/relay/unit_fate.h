// A service of systemd that moves with its processes (`ppmr migrate --unit`): what happens to its
// unit on both nodes.
//
//   source   a drop-in in /etc: no restart, no start, no stop commands. The main process is killed
//            after the decision, so the unit becomes inactive. Then ppmr disables the unit and
//            removes the drop-in. After an abort it only removes the drop-in.
//   target   a drop-in in /run: the unit starts `ppmr migration-unit` in place of its own commands.
//            That process has the unit's output and control group. CRIU connects the restored
//            processes to that output. `ppmr migration-unit` moves them into the control group,
//            and when they run it names the main process to systemd and removes the drop-in.
//
// ppmr uses drop-ins, because systemd applies them even while ppmr is dead. The drop-in of the
// source must outlive a restart of the node: otherwise the boot would start the unit while the
// target runs it. Rejected: `systemctl mask`, which a unit file in /etc overrides.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/records/record_store.h"

namespace ppmr {

// The texts of the drop-ins. `program`: the path of ppmr. `identifier`: the name in the lines of
// the journal; empty: the unit's own setting.
std::string unit_drop_in_of_source(const OwnershipRecord& record);
std::string unit_drop_in_of_target(const OwnershipRecord& record, const std::string& program,
                                   const std::string& state_directory,
                                   const std::string& identifier);

// All functions below do nothing for a migration without a unit.

// Keeps systemd from starting the unit here again. Call it before any process is touched.
Status hold_unit_at_source(const OwnershipRecord& record);
// Disables a held unit whose processes have ended, and removes the drop-in. Errors: EBUSY if the
// unit does not become inactive.
Status retire_unit_at_source(const OwnershipRecord& record);
// Does what source_unit_step() says, if the unit is still held. Errors: EBUSY if the unit does not
// become inactive.
Status settle_unit_at_source(const OwnershipRecord& record);
// Calls settle_unit_at_source() for each record that holds a unit: the record of a migration can be
// settled before its unit is.
void settle_units_at_source(const RecordStore& store);

// Checks whether a unit of this name may arrive here. Errors: ENOENT if it is unknown here, EBUSY
// if it is active.
Status check_unit_is_free(const std::string& unit);

// Starts the unit with `ppmr migration-unit` as its main process. Errors: those of
// check_unit_is_free().
Status expect_unit_at_target(const OwnershipRecord& record, const std::string& state_directory);
// Returns the standard output of the unit's `ppmr migration-unit`. Errors: ETIMEDOUT.
Result<UniqueFd> output_of_unit(const OwnershipRecord& record, std::chrono::milliseconds patience);
// Removes the drop-in of expect_unit_at_target().
Status forget_unit_at_target(const OwnershipRecord& record);

// Returns the inodes of the sockets by which these processes write to the journal.
Result<std::vector<uint64_t>> journal_sockets_of(const std::vector<ProcessIdentity>& tasks);

// Returns one property of `systemctl show`.
Result<std::string> unit_property(const std::string& unit, const std::string& property);

}  // namespace ppmr
