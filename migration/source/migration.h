// The coordinator of one migration: one or more trees that all move or all stay. docs/migration.md
// describes the steps.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <set>
#include <thread>

#include "base/exit_code.h"
#include "base/mutex.h"
#include "migration/relay/agent_client.h"
#include "migration/relay/peer_clock.h"
#include "migration/relay/source_driver.h"
#include "migration/source/hooks.h"
#include "migration/source/move_report.h"
#include "migration/source/tree_dump.h"
#include "processes/frozen_tasks.h"

namespace ppmr {

struct MigrationSettings {
  std::string criu;
  MountEntry mount;
  nlohmann::json endpoint;  // address and credentials for the target's agent, see parse_endpoint()
  MovePlan plan;
  std::string id;  // of the migration, see is_migration_id(); empty: a random one
  std::chrono::milliseconds hold_limit{120'000};
  // Time limit for processes to release RDMA.
  std::chrono::milliseconds release_timeout{10'000};
  std::vector<std::string> criu_options;
  LiveLimits live;
  UnitRecord unit;
  HookSettings hooks;
  // Called for each event, from several threads at once.
  std::function<void(const nlohmann::json& event)> on_event;
};

struct TreePlan {
  ProcessIdentity root;
  std::string name;
  ContainerRecord container;
  uint64_t expected_bytes = 0;  // an estimated maximum; 0: unknown
};

// The result for one tree. The summary shows it.
struct TreeOutcome {
  TreePlan plan;
  TreeRecord source;
  TreeRecord target;
  SealedTree sealed;
  MovePlan move;
  // Rehearsal: when the tree ran again here after its dump, and when the move would have been
  // decided (CLOCK_REALTIME). 0: it was not.
  int64_t goes_on_ns = 0;
  int64_t decided_ns = 0;
  // --max-downtime, if the tree was copied in rounds.
  std::optional<std::chrono::milliseconds> promised_downtime;
  // The times of the target are converted to the clock of this node, with an error of up to this
  // value. Negative: the times are on the target's clock.
  int64_t clock_uncertainty_ns = -1;
};

struct MigrationOutcome {
  ExitCode exit_code = ExitCode::kFailure;
  std::string message;  // why the migration did not succeed; empty on success
  std::string id;
  std::vector<TreeOutcome> trees;
  // The trees stayed because they would have stood still for longer than promised, and --on-timeout
  // does not allow that.
  bool breaks_promise = false;
};

using JobSlots = std::counting_semaphore<4096>;

// Threads: one calls run(); any may set `stop`.
class Migration {
 public:
  Migration(const RecordStore& store, const MigrationSettings& settings,
            std::vector<TreePlan> trees, JobSlots& slots, const std::atomic<bool>& stop);
  ~Migration();
  MigrationOutcome run();

 private:
  struct Tree {
    TreePlan plan;
    std::unique_ptr<TreeDump> dump;
    SealedTree sealed;
    std::vector<RoundRecord> rounds;
    bool is_sealed = false;               // guarded by the migration's mutex_
    bool memory_has_moved = true;         // likewise; false: post-copy needs the frozen tasks
    std::atomic<int64_t> goes_on_ns = 0;  // see TreeOutcome
    std::thread thread;
  };

  // ---- The steps before the decision (migration.cc). On an error the caller aborts the migration.
  Status move_up_to_decision();
  Status prepare();
  Status await_all_sealed();
  Status await_ready();
  // Checks that no other program has frozen a tree: the dump of such a tree could not go on.
  Status check_not_frozen() const;
  Status check_not_over() const;
  Error root_cause(const Error& own);
  Result<OwnershipRecord> look_at_target(std::chrono::milliseconds wait,
                                         std::chrono::milliseconds patience);
  void await_memory_moved();
  // Runs a hook about an event that has already happened, so a failure of the hook is only a
  // warning.
  void run_hook_after(const char* name, const std::string& reason = "");
  // Lets trees that run here, after an abort or as the original of a copy, resume RDMA.
  void resume_rdma_here();
  std::vector<pid_t> roots() const;
  void note_outcome() const;
  void audit_begin(const OwnershipRecord& record) const;
  MigrationOutcome outcome(ExitCode exit_code, const std::string& message);

  // ---- The thread of each tree (migration_trees.cc).
  void dump(Tree& tree, size_t number);  // all that the thread does
  // Does `work` when fewer than --jobs trees are copied or dumped.
  Status in_slot(const std::function<Status()>& work);
  // Asks the trees to release RDMA, and returns when they have released it. Later calls return the
  // same result. All trees release before the first tree is frozen, because they may communicate
  // with each other.
  void plan_release_once();
  Status release_rdma_once();
  // Copies memory of the tree while it runs.
  Status copy(Tree& tree, size_t number);
  Status await_copied();
  // Runs once, when all trees are copied. Waits for the end of a pause, releases RDMA, and then
  // runs the hook.
  Status prepare_freeze();
  Status dump_and_seal(Tree& tree, size_t number);
  Status note_sealed(SourceDriver& driver, const source_event::Sealed& event);
  void note_failure_locked(const Tree& tree, const Error& error) PPMR_REQUIRES(mutex_);
  void finish_memory(Tree& tree, size_t number);
  // Blocks until the source no longer needs the frozen tasks.
  Result<OwnershipRecord> await_decision() const;

  // ---- The decision and the steps after it (migration_decision.cc). After hand_over() has begun,
  // an error leaves the migration unfinished.
  Status check_memory();
  Status check_held();
  Status commit();
  Status hand_over();
  void end_source();
  void join_dumps();
  void settle_unit() const;
  void remove_checkpoints();
  Status await_running();
  // Discards what the target has restored. The trees run here again.
  MigrationOutcome end_rehearsal();
  // Records the abort. Errors: the record could not be written, so nothing is decided.
  Status abort(const Error& why);

  const RecordStore& store_;
  const MigrationSettings& settings_;
  JobSlots& slots_;
  const std::atomic<bool>& stop_;
  const std::string id_;
  AgentClient agent_;
  // The target's record, as last received, with the times of its trees on our clock.
  OwnershipRecord target_;
  std::optional<PeerClock> target_clock_;  // nullopt: unknown
  std::vector<uint64_t> missing_bytes_;    // at the target, of each tree, as last received
  bool is_recorded_ = false;
  bool told_of_interruption_ = false;
  std::vector<Tree> trees_;
  MoveReport report_;
  std::vector<FrozenTasks> frozen_;  // filled by check_held()
  SourceDriver driver_;
  SourceStep committed_;  // the step of the decision

  std::once_flag hook_began_;
  Status hook_ended_;  // result of prepare_freeze()
  std::once_flag release_began_;
  Status released_;  // result of release_rdma_once()
  std::once_flag plan_of_release_began_;
  // Users of RDMA whose memory may be copied in rounds. Empty: the release comes before the copy.
  std::set<pid_t> released_after_rounds_;
  std::atomic<bool> asked_to_release_ = false;
  std::atomic<bool> has_given_up_ = false;

  Mutex mutex_;
  CondVar changed_;
  std::optional<Error> first_failure_ PPMR_GUARDED_BY(mutex_);  // of a tree
  size_t copied_ PPMR_GUARDED_BY(mutex_) = 0;                   // trees
};

}  // namespace ppmr
