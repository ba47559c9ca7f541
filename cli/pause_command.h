#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrate --pause ID` stops the rounds of a live move from this node; `--resume ID` lets them
// go on.
struct PauseCommand {
  std::string digits;  // the ID or its first digits
  bool resume = false;
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;
};

}  // namespace ppmr
