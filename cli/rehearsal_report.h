// Output of a rehearsal at its end: which trees would move, how long the rehearsal froze each, how
// long the downtime of a move would be, and how many bytes a move would send.
#pragma once

#include <string>
#include <vector>

#include "migration/source/migration.h"

namespace ppmr {

inline constexpr const char* kWouldMove = "would move";
inline constexpr const char* kWouldStay = "would stay";

// Durations of one tree, in seconds; negative: the tree did not get that far.
struct RehearsalTimes {
  double freeze = -1;    // from the freeze until the tree runs here again
  double downtime = -1;  // from the freeze until the move would be decided
};
RehearsalTimes rehearsal_times_of(const TreeOutcome& tree);

// Returns a table. `stays`: names of trees that the checks exclude, as "412 (worker)".
std::string rehearsal_text(const std::vector<MigrationOutcome>& outcomes,
                           const std::vector<std::string>& stays, size_t columns = 0);

}  // namespace ppmr
