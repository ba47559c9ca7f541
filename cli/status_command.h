#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct StatusCommand {
  std::string mountpoint;  // empty: all mounts
  bool json = false;
  bool watch = false;
  // The directory of the records, for --watch.
  std::string state_directory = kDefaultStateDirectory;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
