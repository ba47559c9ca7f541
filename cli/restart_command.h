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
  std::string work_directory;  // empty: the command creates a new one
  std::optional<std::chrono::milliseconds> timeout;
  std::vector<std::string> criu_options;
  bool json = false;

  int run() const;  // returns the exit code
};

}  // namespace ppmr
