#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrate --cancel ID`: aborts a migration of this node that another ppmr runs, as long as it
// is not decided. That one ends as after an interruption.
struct CancelCommand {
  std::string digits;  // the ID or its first digits; empty: none
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  // Returns kSuccess if the processes continue here, and kMigrationOpen if a part of that must wait
  // for the other node.
  int run() const;
};

}  // namespace ppmr
