// What the audit file and the metrics of this node get to know of a restore.
#pragma once

#include <cstdint>
#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct RestoreOutcome {
  std::string outcome;    // "running", "complete", "rehearsed", "failed" or "lost"
  std::string reason;     // empty: none
  int64_t sealed_ns = 0;  // when the supervisor learned of the seal; 0: it did not
  std::string work;       // of the restore: the pager leaves its figures there
};

// `record`: the latest one, because the hook has recorded the restored tasks in it. Rehearsals are
// not counted. Errors are ignored: they change nothing for the tree.
void report_restore(const OwnershipRecord& record, size_t tree, const RestoreOutcome& outcome);

}  // namespace ppmr
