// One migration: trees that share one fate. MIGRATION.md has the order of its steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <thread>

#include "mount/command_line/exit_code.h"
#include "restart_loader/migration/agent_client.h"
#include "restart_loader/migration/tree_dump.h"
#include "restart_loader/processes/frozen_tasks.h"

namespace ppmr {

struct MigrationSettings {
  std::string criu;
  MountEntry mount;
  nlohmann::json endpoint;  // how the target's agent is reached, see agent_client.h
  bool lazily = true;
  bool leave_running = false;
  unsigned pre_copy_rounds_max = 0;
  std::chrono::milliseconds hold_limit{120'000};
  std::vector<std::string> criu_options;
  // What happens, as it happens; called from several threads at once.
  std::function<void(const nlohmann::json& event)> on_event;
};

struct TreePlan {
  pid_t root = 0;
  std::string name;
  ContainerRecord container;
};

// What has become of one tree, for the summary. Times in seconds; negative: unknown.
struct TreeOutcome {
  TreePlan plan;
  TreeRecord source;
  TreeRecord target;
  SealedTree sealed;
};

struct MigrationOutcome {
  ExitCode exit_code = ExitCode::kFailure;
  std::string message;  // why it did not succeed
  std::string id;
  std::vector<TreeOutcome> trees;
};

using JobSlots = std::counting_semaphore<4096>;

// Threads: run() by one; `stop` may be set by any.
class Migration {
 public:
  Migration(const RecordStore& store, const MigrationSettings& settings,
            std::vector<TreePlan> trees, JobSlots& slots, const std::atomic<bool>& stop);
  MigrationOutcome run();

 private:
  struct Tree {
    TreePlan plan;
    std::unique_ptr<TreeDump> dump;
    SealedTree sealed;
    bool is_sealed = false;  // guarded by mutex_
    std::thread thread;
  };

  // The steps. An error is why the migration is to be aborted.
  Status prepare();
  void dump(Tree& tree, size_t number);
  Error what_came_first(const Error& own);
  Status await_all_sealed();
  Status await_ready();
  Status commit();
  // After the decision: errors are why it is not finished yet.
  Status hand_over();
  void kill_tasks();
  void join_dumps();
  Status await_running();
  // Errors: it could not be written down, so nothing is decided.
  Status abort(const Error& why);

  Result<OwnershipRecord> look_at_target(std::chrono::milliseconds wait,
                                         std::chrono::milliseconds patience);
  void tell(nlohmann::json event, const Tree* tree = nullptr) const;
  MigrationOutcome outcome(ExitCode exit_code, const std::string& message);

  const RecordStore& store_;
  const MigrationSettings& settings_;
  JobSlots& slots_;
  const std::atomic<bool>& stop_;
  const std::string id_;
  AgentClient agent_;
  OwnershipRecord target_;  // as seen last
  bool is_recorded_ = false;
  bool told_ = false;  // it knows that nothing is left alive here
  std::vector<Tree> trees_;
  std::vector<FrozenTasks> frozen_;  // from the first SIGSTOP on

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failed_;  // the first; guarded by mutex_
};

}  // namespace ppmr
