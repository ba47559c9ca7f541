// Other migrations of the same processes. Two coordinators must not dump one process: CRIU of the
// second would find it traced, and a message that it stays here could be false.
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

// Errors: EALREADY: another migration of this node moves one of these trees, or `ppmr protect`
// protects it; the message describes it.
Status check_rivals(const RecordStore& store, const std::vector<ProcessIdentity>& roots);

// Creates the record of a migration, unless another one moves a process of its trees, or has moved
// it (EALREADY). Of several coordinators that begin at once, the first succeeds. Errors: ETIMEDOUT
// if another coordinator is stopped while it begins; those of RecordStore::create().
Result<OwnershipRecord> create_without_rivals(const RecordStore& store, OwnershipRecord record);

}  // namespace ppmr
