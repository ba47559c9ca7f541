// Finds other migrations of the same processes. Two coordinators must not dump one process: the
// CRIU of the second would find the process traced, and the message that the process stays here
// could be false.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "migration/records/record_store.h"

namespace ppmr {

// Returns a process with its descendants, itself included; empty if it has ended.
using TasksOf = std::function<std::vector<ProcessIdentity>(const ProcessIdentity& root)>;

// Returns the first of the records that is not over and has a process of these trees. Leaves out
// records of another boot or node, whose processes are not the ones here.
std::optional<OwnershipRecord> find_rival(const std::vector<OwnershipRecord>& records,
                                          const std::vector<ProcessIdentity>& roots,
                                          const std::string& boot_id, const TasksOf& tasks_of);

// Returns what the other migration is doing: its id, its state and since when.
std::string describe_rival(const OwnershipRecord& rival, int64_t now_ns);

// Checks that no other program uses the trees. Errors: EALREADY: another migration of this node
// moves one of these trees, or `ppmr protect` protects it; the message describes it.
Status check_rivals(const RecordStore& store, const std::vector<ProcessIdentity>& roots);

// Creates the record of a migration. If several coordinators of the same process begin at once, the
// first succeeds. Errors: EALREADY if another migration moves, or has moved, a process of the
// trees; ETIMEDOUT if another coordinator is stopped while it begins; those of
// RecordStore::create().
Result<OwnershipRecord> create_without_rivals(const RecordStore& store, OwnershipRecord record);

}  // namespace ppmr
