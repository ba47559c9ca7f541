#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrations`: lists what is in progress, and what is over here but not settled with the
// other node, in both directions.
struct MigrationsCommand {
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
