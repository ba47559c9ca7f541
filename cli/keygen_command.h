#pragma once

#include <string>

namespace ppmr {

struct KeygenCommand {
  std::string path;
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
