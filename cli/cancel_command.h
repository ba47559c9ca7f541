#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrate --cancel ID`: aborts a migration from this node that another `ppmr migrate` runs.
// This is possible only before the decision. The other `ppmr migrate` then ends as if a signal had
// interrupted it.
struct CancelCommand {
  std::string digits;  // the ID or its first digits; empty: none
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  // Returns kSuccess if the migration is settled and the processes continue here, and
  // kMigrationOpen if a part of the abort must wait for the other node.
  int run() const;
};

}  // namespace ppmr
