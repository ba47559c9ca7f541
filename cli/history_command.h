#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct HistoryCommand {
  std::string state_directory = kDefaultStateDirectory;
  std::optional<std::chrono::seconds> since;  // nullopt: all records
  bool failed = false;
  bool json = false;

  int run() const;  // returns the exit code
};

// Parses "30" (seconds), "90s", "15m", "12h", "7d". Errors: EINVAL.
Result<std::chrono::seconds> parse_duration(const std::string& text);

}  // namespace ppmr
