#pragma once

#include <string>

namespace ppmr {

struct StatusCommand {
  std::string mountpoint;  // empty: all
  bool json = false;
  bool watch = false;

  int run() const;  // the exit code
};

}  // namespace ppmr
