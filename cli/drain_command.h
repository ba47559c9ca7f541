#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ppmr {

struct DrainCommand {
  std::string mountpoint;
  bool resume = false;
  std::optional<std::chrono::milliseconds> timeout;
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
