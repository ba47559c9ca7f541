#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "migration/records/record_store.h"
#include "migration/source/changed_limits.h"

namespace ppmr {

// Parses "max-rate=100MiB", "cpu-share=25%", "slow-down=50%", "max-downtime=1s" and "max-time=2m".
// One word may have several, with commas between them. Errors: EINVAL.
Result<ChangedLimits> parse_changed_limits(const std::vector<std::string>& words);

// `ppmr migrate --set ID LIMIT=VALUE...`: changes the limits of a live move from this node while
// the move copies memory.
struct SetCommand {
  std::string digits;  // the ID or its first digits; empty: none
  std::vector<std::string> limits;
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;
};

}  // namespace ppmr
