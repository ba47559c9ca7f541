// How a migration looks to people and to programs: lines while it goes on, a table at its end.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "restart_loader/migration/migration.h"

namespace ppmr {

// A line for people; empty where there is nothing to say.
std::string event_text(const nlohmann::json& event);

// Durations in seconds, of one tree; negative where it did not come so far.
struct TreeTimes {
  double dump = -1;      // frozen until everything is written into the mount
  double seal = -1;      // until the target has verified it
  double restart = -1;   // until it runs there
  double downtime = -1;  // from the freeze until it runs
  double fill = -1;      // from there until all of its memory is in place
};
TreeTimes times_of(const TreeOutcome& tree);

std::string summary_text(const std::vector<MigrationOutcome>& outcomes);
// One line. `stays`: what was not even begun, by name.
std::string summary_json(const std::vector<MigrationOutcome>& outcomes,
                         const std::vector<std::string>& stays, ExitCode exit_code);

}  // namespace ppmr
