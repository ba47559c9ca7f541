#pragma once

#include <string>
#include <vector>

namespace ppmr {

struct ConfigCheckCommand {
  std::vector<std::string> files;  // empty: those of the units
  std::string directory = "/etc/ppmr";

  int run() const;  // the exit code
};

}  // namespace ppmr
