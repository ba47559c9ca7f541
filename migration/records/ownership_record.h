// The record of a migration: which node may run its processes. Each of the two nodes has one.
//
// The records are the protocol. A process that waits for the decision waits for a change of its
// node's record. The process that decides writes the decision into the record. docs/migration.md
// describes the protocol.
//
//   source   preparing -> dumping -> frozen -> sealed -> COMMITTED -> finished
//   target   restoring -> ready -> running -> finished
//   both     -> aborted: at the source from any state before committed;
//            at the target from restoring on its own initiative, from ready on the source's
//            decision, or because this node was restarted and its copy is dead
//
// `migration/protocol` has the rules; nothing else takes a record from state to state.
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "migration/records/move_plan.h"
#include "processes/process_identity.h"
#include "restart_loader/containers/container_record.h"

namespace ppmr {

// The epochs of protected trees, see migration/epochs.
inline constexpr const char* kEpochsDirectory = "/run/ppmr/epochs";

// The upper bound of OwnershipRecord::hold_limit_ms.
inline constexpr std::chrono::hours kHoldLimitMax{24};

enum class MigrationRole { kSource, kTarget };

enum class MigrationState {
  kPreparing,  // source: no process was touched
  kDumping,    // source: trees are being dumped
  kFrozen,     // source: every tree is dumped, held in CRIU's post-dump hook, and stopped
  kSealed,     // source: the target has verified every checkpoint
  kCommitted,  // source: the decision is durable: only the target may run the trees
  kRestoring,  // target: waits for checkpoints and restores them
  kReady,      // target: every tree is restored and held in the post-restore hook; in doubt
  kRunning,    // target: the source's copy never runs again; the trees may run
  kFinished,   // this node has nothing left to do
  kAborted,    // the trees continue at the source
};
inline constexpr size_t kMigrationStateCount = 10;
static_assert(static_cast<size_t>(MigrationState::kAborted) + 1 == kMigrationStateCount);

// The progress of one tree.
enum class TreePhase {
  kWaiting,
  kDumping,   // source
  kHeld,      // source: dumped, held in the post-dump hook
  kStopped,   // source: no task can run before an abort is recorded, even if CRIU is killed
  kSealed,    // source: the target has verified the tree's checkpoint
  kReady,     // target: restored, held in the post-restore hook
  kRunning,   // target: runs
  kComplete,  // source: the tasks are dead; target: all memory is in place
};

const char* to_string(MigrationRole role);
const char* to_string(MigrationState state);
const char* to_string(TreePhase phase);
std::optional<MigrationState> parse_state(const std::string& name);
// Returns, for example, "source:sealed", for tests.
std::string to_string(MigrationRole role, MigrationState state);

MigrationState first_state(MigrationRole role);
bool may_change(MigrationRole role, MigrationState from, MigrationState to);
bool is_over(MigrationState state);

// A completed round of a live move.
struct RoundRecord {
  int64_t ended_ns = 0;
  uint64_t bytes = 0;
};

// A pause of the rounds (`ppmr migrate --pause`).
struct PauseRecord {
  int64_t began_ns = 0;
  int64_t ended_ns = 0;
};

struct TreeRecord {
  pid_t root = 0;
  uint64_t root_start_time = 0;  // source: with `root`, identifies the process that was selected
  std::string name;              // name of the root's program, for messages
  std::string checkpoint;        // name of the tree's checkpoint in the mounts
  // Target: the name and the number of the epoch from which the tree is taken over
  // (migration/epochs). Empty name: the tree's checkpoint is in the mount.
  std::string protected_as;
  uint64_t epoch = 0;
  ContainerRecord container;
  TreePhase phase = TreePhase::kWaiting;
  std::vector<ProcessIdentity> tasks;  // frozen (source) or restored (target)
  // Source: tasks that their user had stopped before the dump. An abort does not continue them.
  std::vector<ProcessIdentity> stopped_before;
  std::vector<uint64_t> waiting_at;  // target: the address in CRIU's restorer where each task waits
  ProcessIdentity criu;              // holds the tasks
  ProcessIdentity supervisor;        // target: its `ppmr migration-restore`
  // Source: the estimated maximum of what the tree needs at the target; 0: unknown.
  uint64_t expected_bytes = 0;
  uint64_t bytes = 0;           // source: what the target has verified, known at the end
  int64_t dump_began_ns = 0;    // source: start of the first round, or of the dump; all
                                // times are CLOCK_REALTIME
  int64_t freeze_began_ns = 0;  // source
  int64_t held_ns = 0;          // when the tree was dumped (source) or restored (target)
  int64_t sealed_ns = 0;
  int64_t goes_on_ns = 0;  // source, rehearsal: when the tree ran here again after its dump
  std::vector<RoundRecord> rounds;  // source
  // Times of the target. When the migration is over, the record of the source has these times, too.
  int64_t restore_began_ns = 0;
  int64_t restored_ns = 0;  // source only: at the target it is held_ns
  int64_t running_ns = 0;
  int64_t complete_ns = 0;
  std::string error;  // target: why the supervisor gave up; the next supervisor clears it
  std::string lost;   // why the tree runs on neither node any more; empty: it is not lost
};

// The most sockets to the journal that the processes of a unit may have.
inline constexpr size_t kJournalSocketsMax = 64;

// A service of systemd that moves with its processes. If the name is empty, no service moves.
struct UnitRecord {
  std::string name;                       // "web.service"
  std::vector<uint64_t> journal_sockets;  // source: inodes of the sockets to its journal
  bool enabled = false;                   // source: a restart of the node starts it
};

struct StateChange {
  MigrationState state = MigrationState::kPreparing;
  int64_t at_ns = 0;
  bool operator==(const StateChange&) const = default;
};

// Only move_to() changes the state. It refuses the changes that may_change() refuses. Everything
// else is plain data.
struct OwnershipRecord {
  MigrationState state() const { return history_.back().state; }
  // The states so far, the first and the present one included.
  const std::vector<StateChange>& history() const { return history_; }
  // Begins a new record: sets the first state of `role`, and clears the history.
  void begin(int64_t at_ns);
  // Errors: EPERM if `to` may not follow the present state; the message names both.
  Status move_to(MigrationState to);
  Status move_to(MigrationState to, int64_t at_ns);

  std::string id;  // 32 hexadecimal digits
  MigrationRole role = MigrationRole::kSource;
  uint64_t version = 0;  // set by RecordStore, counts from 1
  std::string peer;  // source: name of the target; target: identity of the source, and the owner
                     // of the checkpoints that this migration may use
  // `node_id` of the other node; see is_same_source() and check_denial().
  std::string peer_node_id;
  std::string peer_state_directory;  // source: where the target has its records; check_denial()
  nlohmann::json endpoint;           // source: the target's agent, see parse_endpoint()
  std::string node_id;               // of the record's node, see read_node_id()
  std::string boot_id;  // of the record's node: the ProcessIdentities are valid in this boot only
  std::string incarnation;  // of the target, see TargetFacts; source: of the target that prepared
  std::string mountpoint;   // on this node
  std::string audit_file;   // on this node; empty: syslog only
  ProcessIdentity coordinator;  // source: `ppmr migrate`
  int64_t hold_limit_ms = 0;    // how long a tree may be held before the decision
  MovePlan plan;
  std::vector<std::string> criu_options;
  nlohmann::json restart_policy =
      nlohmann::json::object();  // target: of this migration, see preflight/policy
  UnitRecord unit;
  std::vector<TreeRecord> trees;
  std::vector<PauseRecord> pauses;  // source: pauses that are over
  bool tasks_stopped = false;       // source: SIGSTOP may have been sent to the tasks
  bool tasks_resumed = false;       // source: the stopped tasks go on after an abort
  // Source: the target was notified of the outcome. Target: the source has seen the outcome.
  bool peer_notified = false;
  uint64_t confirmations = 0;  // target: how often it has confirmed its vote
  std::string error;           // why the migration was aborted or is stuck

  // Returns "source" or "target": the node that may run the processes. Returns an explanation
  // instead if both may run them (a copy), or if this record does not say which.
  const char* owner() const;
  // Returns whether all trees have reached at least this phase.
  bool all_trees(TreePhase phase) const;
  // Returns the record's error, else the first error or loss of a tree; empty: none.
  const std::string& first_error() const;
  // Returns whether this node has nothing left to do for the migration, and its peer needs no
  // message.
  bool is_settled() const;
  // Returns whether at least one tree runs on neither node any more.
  bool has_losses() const;
  // Returns "process 12 (redis) is lost: WHY; process ..." for the lost trees, or "".
  std::string losses() const;

 private:
  std::vector<StateChange> history_{{}};
};

// Returns the tasks of a tree that go on after an abort at the source.
std::vector<ProcessIdentity> tasks_to_resume(const TreeRecord& tree);

// The name of the checkpoint of a tree's memory; "" if the images include the memory.
std::string memory_checkpoint(const MovePlan& plan, const TreeRecord& tree);
// The directory with the images of a tree's last dump, at the record's node.
std::string images_path(const OwnershipRecord& record, const TreeRecord& tree);
// The memory file of a tree (processes/memory); "" if the images include the memory.
std::string memory_path(const OwnershipRecord& record, const TreeRecord& tree);

void to_json(nlohmann::json& json, const OwnershipRecord& record);
void to_json(nlohmann::json& json, const TreeRecord& tree);
// Validates a record from disk or from a peer. Errors: EPROTO; the message names the fault.
// EOPNOTSUPP: a newer version of ppmr has written it.
Result<OwnershipRecord> parse_record(const nlohmann::json& json);

std::string random_migration_id();
bool is_migration_id(const std::string& text);

}  // namespace ppmr
