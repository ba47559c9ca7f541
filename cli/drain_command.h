#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
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

// Returns what the daemon with this status has begun and not finished: "migration 01234567 (ready),
// checkpoint web.1 (open, 12.0 MiB)". Pure.
std::string describe_open_work(const nlohmann::json& status);

}  // namespace ppmr
