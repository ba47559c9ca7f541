// The supervisors of a migration at the target: a process for each tree, `ppmr migration-restore`
// (tree_restore.h), which the record names.
#pragma once

#include <string>

#include "restart_loader/records/record_store.h"

namespace ppmr {

// Starts one in a session of its own, with its output in the work directory. Errors: of starting
// it.
Status start_supervisor(const RecordStore& store, const std::string& id, size_t tree);

// Starts another one for each tree that is not complete and whose supervisor is gone: it was
// killed, or the node was started anew. Errors: of starting one.
Status ensure_supervisors(const RecordStore& store, const OwnershipRecord& record);

}  // namespace ppmr
