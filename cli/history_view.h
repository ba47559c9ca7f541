// A past migration, from its record, as a row of a table or as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "migration/records/ownership_record.h"

namespace ppmr {

struct PastMigration {
  std::string id;
  int64_t began_ns = 0;  // CLOCK_REALTIME
  std::string from;
  std::string to;
  std::string processes;   // "4711 worker", "4711 worker and 2 more", escaped
  double downtime_s = -1;  // the longest downtime of its processes; negative: unknown at this node
  std::string result;      // "moved", "copied", "stayed", "OPEN", "FAILED"
  std::string error;       // with escapes; empty: no error
};

// `node`: the name of this node.
PastMigration describe_migration(const OwnershipRecord& record, const std::string& node);
// Returns whether the migration did not move all of its processes, or is unfinished.
bool has_failed(const PastMigration& migration);

// Returns a line of titles, and below it one line for each migration. Times are local.
// `columns`: of the terminal; 0: lines of any length.
std::string history_text(const std::vector<PastMigration>& migrations, size_t columns = 0);
nlohmann::json history_json(const OwnershipRecord& record, const PastMigration& migration);

}  // namespace ppmr
