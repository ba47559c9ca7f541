#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct StatusCommand {
  std::string mountpoint;  // empty: all
  bool json = false;
  bool watch = false;
  std::string state_directory = kDefaultStateDirectory;  // of records, for watch

  int run() const;  // the exit code
};

}  // namespace ppmr
