#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// Prints a picture of one migration, from its record on this node.
struct TimelineCommand {
  std::string id;  // or the first digits of it; empty: the last migration
  bool text = false;
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;  // never: for errors only

  int run() const;  // the exit code
};

}  // namespace ppmr
