// Who may run the processes of a migration, as each of the two nodes has written it down.
//
// The records are the protocol: whoever waits for a decision waits for the record of its node, and
// whoever decides changes it. MIGRATION.md tells the whole story.
//
//   source   preparing -> dumping -> frozen -> sealed -> COMMITTED -> finished
//   target   restoring -> ready -> owned -> running -> finished
//   and      -> aborted: at the source from any state before committed; at the target from
//            restoring by itself, from ready only when the source says so
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "restart_loader/processes/process_identity.h"

namespace ppmr {

// How long a source may ask a target to hold a tree undecided.
inline constexpr std::chrono::hours kHoldLimitMax{24};

enum class MigrationRole { kSource, kTarget };

enum class MigrationState {
  kPreparing,  // source: nothing was touched yet
  kDumping,    // source: at least one tree is being dumped
  kFrozen,     // source: every tree is dumped and held in CRIU's post-dump hook
  kSealed,     // source: the target has verified every checkpoint
  kCommitted,  // source: the decision, from here on only the target may run them
  kRestoring,  // target: waits for checkpoints, restores
  kReady,      // target: every tree is restored and held in the post-restore hook; in doubt
  kOwned,      // target: has heard of the decision
  kRunning,    // target: has heard that the source's tasks are dead; lets them run
  kFinished,   // this node has nothing left to do
  kAborted,    // the source runs them on
};
inline constexpr size_t kMigrationStateCount = 11;
static_assert(static_cast<size_t>(MigrationState::kAborted) + 1 == kMigrationStateCount);

// What has become of one tree.
enum class TreePhase {
  kWaiting,
  kDumping,   // source
  kHeld,      // source: dumped, held in the post-dump hook
  kSealed,    // source: the target has verified its checkpoint
  kReady,     // target: restored, held in the post-restore hook
  kRunning,   // target: runs
  kComplete,  // source: its tasks are dead; target: all of its memory is in place
};

const char* to_string(MigrationRole role);
const char* to_string(MigrationState state);
const char* to_string(TreePhase phase);
std::optional<MigrationState> parse_state(const std::string& name);
// "source:sealed"; for messages and tests.
std::string to_string(MigrationRole role, MigrationState state);

MigrationState first_state(MigrationRole role);
bool may_change(MigrationRole role, MigrationState from, MigrationState to);
bool is_over(MigrationState state);

// A container of runc's that a tree is; without a name: it is none.
struct ContainerRecord {
  std::string name;
  std::string bundle;   // its directory, the same on both nodes
  std::string created;  // source: tells it from a later one of the same name
};

struct TreeRecord {
  pid_t root = 0;
  std::string name;        // of the root's program, for people
  std::string checkpoint;  // the top-level entry of the mounts
  ContainerRecord container;
  std::string images;  // where in it the last dump is: "", or a directory behind rounds
  TreePhase phase = TreePhase::kWaiting;
  std::vector<ProcessIdentity> tasks;  // once they are frozen (source) or restored (target)
  std::vector<uint64_t> waiting_at;    // target: where in CRIU's restorer each of them waits
  ProcessIdentity criu;                // that holds them
  ProcessIdentity supervisor;          // target: the process that owns the restore
  int64_t freeze_began_ns = 0;         // source; times are of CLOCK_REALTIME
  int64_t held_ns = 0;                 // dumped, or restored
  int64_t sealed_ns = 0;
  int64_t running_ns = 0;
  int64_t complete_ns = 0;
  bool lazily = false;  // target: how it was restored in the end
  std::string error;    // target: why its last restore failed; another supervisor begins without
};

struct StateChange {
  MigrationState state = MigrationState::kPreparing;
  int64_t at_ns = 0;
};

struct OwnershipRecord {
  std::string id;  // 32 hexadecimal digits
  MigrationRole role = MigrationRole::kSource;
  MigrationState state = MigrationState::kPreparing;
  uint64_t version = 0;         // of this record, counted by the store
  uint64_t epoch = 1;           // how many nodes have owned the processes so far, with this one
  std::string peer;             // the other node, for people
  nlohmann::json endpoint;      // source: how the target's agent is reached, see agent_client.h
  std::string mountpoint;       // of this node
  ProcessIdentity coordinator;  // source: `ppmr migrate`
  int64_t hold_limit_ms = 0;    // how long a tree may be held undecided
  bool leave_running = false;
  bool lazily = true;
  std::vector<std::string> criu_options;
  std::vector<TreeRecord> trees;
  bool tasks_stopped = false;  // source: they may have got a SIGSTOP of ours
  bool peer_notified = false;  // source: the target has heard how it ended
  std::string error;           // why it was aborted, or is stuck
  std::vector<StateChange> history;

  // The target's, once committed: only there may they run.
  const char* owner() const;
  // Whether all trees have come at least so far.
  bool all_trees(TreePhase phase) const;
  // Its own error, else that of a tree; empty: all is well so far.
  const std::string& first_error() const;
};

void to_json(nlohmann::json& json, const OwnershipRecord& record);
void to_json(nlohmann::json& json, const TreeRecord& tree);
// What a disk or a peer gave us. Errors: EPROTO and which field is wrong.
Result<OwnershipRecord> parse_record(const nlohmann::json& json);

// What runc lets a container be called. What a peer sends must not lead anywhere else.
bool is_container_name(const std::string& name);

std::string random_migration_id();
bool is_migration_id(const std::string& text);

// CLOCK_REALTIME in nanoseconds: the one clock that both nodes and restored programs share.
int64_t realtime_ns();

}  // namespace ppmr
