#pragma once

#include <string>
#include <vector>

namespace ppmr {

struct ConfigCheckCommand {
  std::vector<std::string> files;  // empty: the configuration files of the units
  std::string directory = "/etc/ppmr";

  int run() const;  // returns the exit code
};

}  // namespace ppmr
