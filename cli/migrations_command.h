#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrations`: lists the migrations from and to this node that are in progress, or that the
// other node has not acknowledged yet.
struct MigrationsCommand {
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
