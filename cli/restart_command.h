#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ppmr {

struct RestartCommand {
  std::string path;
  bool eager = false;
  bool remove = false;
  std::string work_directory;  // empty: a new one
  std::optional<std::chrono::milliseconds> timeout;
  std::vector<std::string> criu_options;
  bool json = false;

  int run() const;  // the exit code
};

}  // namespace ppmr
