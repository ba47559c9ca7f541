// Output of a migration: a line for each event, and a table or a JSON object at the end.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "daemon/control/requests.h"
#include "migration/source/migration.h"

namespace ppmr {

// Returns a line for the operator; empty: this event has no line.
std::string event_text(const nlohmann::json& event);

// Durations of one tree, in seconds; negative: the tree did not get that far.
struct TreeTimes {
  double dump = -1;      // from the freeze until CRIU has written everything into the mount
  double seal = -1;      // from the end of the dump until the target has verified everything
  double restart = -1;   // from the end of the seal until the tree runs at the target
  double downtime = -1;  // from the freeze until the tree runs at the target
  double fill = -1;      // from the end of the downtime until all memory is in place
};
TreeTimes times_of(const TreeOutcome& tree);

// Returns the note that `ppmr migrate` sends to the source's daemon.
request::NoteOutcome outcome_note(const MigrationOutcome& outcome);

std::string summary_text(const std::vector<MigrationOutcome>& outcomes, size_t columns = 0);
// Returns one line. `stays`: names of trees whose migration did not start.
std::string summary_json(const std::vector<MigrationOutcome>& outcomes,
                         const std::vector<std::string>& stays, ExitCode exit_code);

}  // namespace ppmr
