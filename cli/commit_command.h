#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ppmr {

struct CommitCommand {
  std::string path;
  std::optional<std::chrono::milliseconds> timeout;
  bool kept = false;  // also waits until the target has the checkpoint on its disk
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
