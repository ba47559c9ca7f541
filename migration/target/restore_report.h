// Reports a restore to the audit file and the metrics of this node.
#pragma once

#include <cstdint>
#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct RestoreOutcome {
  std::string outcome;    // "running", "complete", "rehearsed", "failed" or "lost"
  std::string reason;     // empty: none
  int64_t sealed_ns = 0;  // when the supervisor saw the seal; 0: it did not
  std::string work;       // the work directory, which has the pager's figures
};

// `record`: the latest one, because the hook has recorded the restored tasks in it. The metrics do
// not count rehearsals. Ignores errors, because they change nothing for the tree.
void report_restore(const OwnershipRecord& record, size_t tree, const RestoreOutcome& outcome);

}  // namespace ppmr
