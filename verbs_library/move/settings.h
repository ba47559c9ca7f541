// Settings from the environment of the program. `ppmr rdma run` sets the directory.
#pragma once

#include <chrono>
#include <string>

namespace ppmr::verbs {

struct Settings {
  std::string directory;   // PPMR_VERBS_DIRECTORY; empty: peers cannot be found
  std::string token_file;  // PPMR_VERBS_TOKEN_FILE: for the directory of a job
  std::string control_ip;  // PPMR_VERBS_ADDRESS; empty: derived from the GIDs
  std::chrono::milliseconds drain_limit{8'000};   // PPMR_VERBS_DRAIN_LIMIT_MS
  std::chrono::milliseconds hold_limit{600'000};  // PPMR_VERBS_HOLD_LIMIT_MS
  std::chrono::milliseconds away_limit{120'000};  // PPMR_VERBS_AWAY_LIMIT_MS
};

// Returns the settings, which it reads at the first call. Threads: any.
const Settings& settings();

}  // namespace ppmr::verbs
