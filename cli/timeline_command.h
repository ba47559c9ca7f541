#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// Prints a picture of one migration, from its record on this node.
struct TimelineCommand {
  std::string id;  // the whole ID or its first digits; empty: the last migration
  bool text = false;
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;  // always false; for the form of errors

  int run() const;  // returns the exit code
};

}  // namespace ppmr
