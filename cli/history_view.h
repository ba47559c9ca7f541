// Shows a past migration, from its record, as a row of a table or as JSON. Shows a protected
// process likewise, from what its partner keeps, or from the status of the mount through which its
// epochs leave.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "migration/epochs/epoch_state.h"
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
// `columns`: the width of the terminal; 0: lines of any length.
std::string history_text(const std::vector<PastMigration>& migrations, size_t columns = 0);
nlohmann::json history_json(const OwnershipRecord& record, const PastMigration& migration);

// A protected process, with the newest epoch that is complete at its partner.
struct ProtectedProcess {
  MigrationRole role = MigrationRole::kSource;  // of this node; kTarget: this node is the partner
  std::string name;                             // the name under which it is protected
  bool is_copy = false;                         // this node restores a copy beside its source
  std::string from;                             // escaped
  std::string to;                               // escaped
  pid_t pid = 0;
  std::string program;  // escaped
  uint64_t epoch = 0;   // 0: none is complete yet
  int64_t age_ms = 0;   // of the epoch: the work that a loss of the source would cost
  int64_t pause_ms = 0;
  uint64_t bytes = 0;       // memory of the process
  uint64_t sent_bytes = 0;  // the part of `bytes` that this epoch has sent
};

// Describes what this node keeps of a protected process. Returns nullopt if the process runs here.
// `node`: the name of this node. `takeover`: see judge_source().
std::optional<ProtectedProcess> describe_protected(const EpochState& kept,
                                                   std::optional<MigrationState> takeover,
                                                   const std::string& node, int64_t now_ns);
// Returns the protected processes in a daemon's reply to `ppmr status`. Fields that the reply lacks
// are 0 or empty.
std::vector<ProtectedProcess> protected_through(const nlohmann::json& status,
                                                const std::string& node);

// As history_text() and history_json().
std::string protected_text(const std::vector<ProtectedProcess>& processes, size_t columns = 0);
nlohmann::json protected_json(const ProtectedProcess& process);

}  // namespace ppmr
