#include "migration/relay/migration_hook.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "daemon/command_line/output.h"
#include "migration/relay/moved_memory.h"
#include "migration/relay/notify_target.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/frozen_tasks.h"
#include "processes/restorer_wait.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/restore.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The interval at which a hook checks which processes are still alive.
constexpr milliseconds kLookInterval{200};
// The interval at which the target's hook checks whether all memory has arrived.
constexpr milliseconds kMemoryInterval{2};
// How long a hook whose coordinator died tries to notify the target.
constexpr milliseconds kNotifyPatience{10'000};
// This includes the time until CRIU has let the tree run.
constexpr milliseconds kResumePatience{10'000};

constexpr bool kLetCriuGoOn = true;
constexpr bool kStopCriu = false;

void log(const std::string& sentence) { print_to(stderr, "ppmr hook: {}\n", sentence); }

class Hold {
 public:
  Hold(RecordStore store, std::string id, MigrationRole role, size_t tree, pid_t criu,
       pid_t restored_root = 0)
      : store_(std::move(store)),
        id_(std::move(id)),
        role_(role),
        tree_(tree),
        criu_(identify(criu).value_or(ProcessIdentity{})),
        restored_root_(restored_root) {}

  bool at_source();
  bool at_target();

 private:
  Result<OwnershipRecord> change(const RecordStore::Change& change) const {
    return store_.change(id_, role_, change);
  }
  Status note_held(OwnershipRecord& record) const;
  Status note_ready(OwnershipRecord& record) const;
  bool is_overdue(const OwnershipRecord& record) const;
  std::string reason_to_abort(const OwnershipRecord& record) const;
  std::optional<bool> abort(const std::string& why);
  bool let_run_on(const OwnershipRecord& record) const;
  bool await_memory() const;
  bool let_run_here() const;
  bool finish_committed(OwnershipRecord record);
  Result<FrozenTasks> our_tasks(const OwnershipRecord& record) const {
    return FrozenTasks::open(record.trees[tree_].tasks);
  }

  const RecordStore store_;
  const std::string id_;
  const MigrationRole role_;
  const size_t tree_;
  const ProcessIdentity criu_;
  const pid_t restored_root_;
  const Clock::time_point began_ = Clock::now();
  bool logged_that_it_holds_ = false;
};

// Runs `work` in a child process, so that CRIU, which waits for the relay, can continue.
void run_in_background(const std::function<void()>& work) {
  if (fork() != 0) return;
  setsid();
  // If this child kept CRIU's socket open, CRIU would not notice the end of the relay.
  close_range(STDERR_FILENO + 1, ~0U, 0);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
  work();
  _exit(0);
}

void notify_target_in_background(const RecordStore& store, const OwnershipRecord& record) {
  run_in_background([&] {
    AgentClient agent(parse_endpoint(record.endpoint));
    (void)notify_target(store, agent, record, kNotifyPatience);
  });
}

Status Hold::note_held(OwnershipRecord& record) const {
  if (tree_ >= record.trees.size())
    return failure(EINVAL, fmt::format("the record of migration {} has no tree {}", id_, tree_));
  if (record.state() != MigrationState::kDumping) {
    return failure(ECANCELED, std::string("the migration is ") + to_string(record.state()));
  }
  TreeRecord& tree = record.trees[tree_];
  if (Status same = check_identity({tree.root, tree.root_start_time}, record.boot_id); !same) {
    return same;
  }
  auto tasks = tasks_of_tree(tree.root);
  if (!tasks) return failure(tasks.error());
  tree.tasks = std::move(*tasks);
  tree.criu = criu_;
  tree.phase = TreePhase::kHeld;
  tree.held_ns = realtime_ns();
  return record.all_trees(TreePhase::kHeld) ? record.move_to(MigrationState::kFrozen) : Status{};
}

bool Hold::at_source() {
  auto record = change([&](OwnershipRecord& latest) { return note_held(latest); });
  // ESRCH: the frozen tree is not the one that was selected for the migration.
  if (!record && record.error().errno_value == ESRCH) {
    return abort(record.error().message).value_or(kStopCriu);
  }
  if (!record) {
    log(record.error().message);
    return kStopCriu;
  }
  if (record->plan.original_goes_on)
    return kLetCriuGoOn;  // with --leave-running CRIU lets the tree run
  for (;;) {
    switch (record->state()) {
      case MigrationState::kAborted:
        return let_run_on(*record);
      case MigrationState::kCommitted:
      case MigrationState::kFinished:
        return finish_committed(*record);
      default:
        break;
    }
    if (const std::string why = reason_to_abort(*record); !why.empty()) {
      if (const auto verdict = abort(why)) return *verdict;
    }
    auto next = store_.wait(id_, role_, record->version, kLookInterval);
    if (next) {
      record = std::move(next);
    } else {
      // The record cannot be read, so the decision is unknown: keep holding.
      log(next.error().message);
      std::this_thread::sleep_for(kLookInterval);
    }
  }
}

// Memory may take any time to arrive: each contact of the coordinator, which has time limits of its
// own, restarts the limit.
bool Hold::is_overdue(const OwnershipRecord& record) const {
  const milliseconds limit(record.hold_limit_ms);
  return Clock::now() - began_ > limit && store_.since_contact(id_, role_) > limit;
}

std::string Hold::reason_to_abort(const OwnershipRecord& record) const {
  if (!is_alive(record.coordinator)) {
    return fmt::format("ppmr migrate (pid {}) died before the decision", record.coordinator.pid);
  }
  if (!is_alive(criu_)) return "CRIU died before the decision";
  if (is_overdue(record)) {
    return fmt::format("no decision within {} s (--timeout)", record.hold_limit_ms / 1000);
  }
  return "";
}

// nullopt if the abort cannot be recorded, for example because the disk is full: until it can, the
// tasks may neither be released nor killed.
std::optional<bool> Hold::abort(const std::string& why) {
  auto aborted =
      store_.advance(id_, role_, MigrationState::kAborted, [&](OwnershipRecord& record) -> Status {
        record.error = why;
        return {};
      });
  if (aborted) {
    const bool verdict = let_run_on(*aborted);
    notify_target_in_background(store_, *aborted);
    log("aborted, the process keeps running here: " + why);
    return verdict;
  }
  auto record = store_.read(id_, role_);
  if (record && record->state() == MigrationState::kAborted) return let_run_on(*record);
  if (record && (record->state() == MigrationState::kCommitted || is_over(record->state()))) {
    return finish_committed(*record);
  }
  if (!logged_that_it_holds_) {
    log("still held: " + why + ", but the abort cannot be recorded: " + aborted.error().message);
  }
  logged_that_it_holds_ = true;
  return std::nullopt;
}

bool Hold::let_run_on(const OwnershipRecord& record) const {
  if (record.tasks_stopped) {
    if (auto tasks = our_tasks(record)) tasks->resume();
  }
  // Normally the coordinator asks the tree to resume RDMA.
  if (!is_alive(record.coordinator)) {
    run_in_background([&] { (void)resume_rdma({record.trees[tree_].root}, kResumePatience); });
  }
  return kStopCriu;
}

// The coordinator kills the tasks. If it has died or is too slow, the hook does, as soon as the
// target has their memory.
bool Hold::finish_committed(OwnershipRecord record) {
  while (record.trees[tree_].phase != TreePhase::kComplete && is_alive(record.coordinator) &&
         is_alive(criu_) && !is_overdue(record)) {
    if (auto next = store_.wait(id_, role_, record.version, kLookInterval)) record = *next;
  }
  if (record.trees[tree_].phase == TreePhase::kComplete) return kLetCriuGoOn;
  await_memory_moved(record, record.trees[tree_]);
  if (auto tasks = our_tasks(record)) tasks->kill();
  auto killed = change([&](OwnershipRecord& latest) -> Status {
    latest.trees[tree_].phase = TreePhase::kComplete;
    return {};
  });
  if (killed && killed->all_trees(TreePhase::kComplete) && !killed->peer_notified) {
    notify_target_in_background(store_, *killed);
  }
  return kLetCriuGoOn;
}

Status Hold::note_ready(OwnershipRecord& record) const {
  if (tree_ >= record.trees.size())
    return failure(EINVAL, fmt::format("the record of migration {} has no tree {}", id_, tree_));
  if (is_over(record.state())) {
    return failure(ECANCELED, std::string("the migration is ") + to_string(record.state()));
  }
  auto tasks = tasks_of_tree(restored_root_);
  if (!tasks) return failure(tasks.error());
  TreeRecord& tree = record.trees[tree_];
  tree.waiting_at.clear();
  for (const ProcessIdentity& task : *tasks) tree.waiting_at.push_back(await_in_restorer(task.pid));
  tree.tasks = std::move(*tasks);
  tree.criu = criu_;
  if (tree.phase < TreePhase::kReady) tree.held_ns = realtime_ns();
  tree.phase = std::max(tree.phase, TreePhase::kReady);
  if (record.state() == MigrationState::kRestoring && record.all_trees(TreePhase::kReady)) {
    return record.move_to(MigrationState::kReady);
  }
  return {};
}

// If it returns kStopCriu, the supervisor restores the tree again from the checkpoint.
bool Hold::let_run_here() const {
  const auto work = store_.make_work_directory(id_, role_, tree_);
  if (!work) {
    log(work.error().message);
    return kStopCriu;
  }
  if (pages_server_is_lost(*work)) {
    log("the pager has ended before the process ran");
    return kStopCriu;
  }
  return kLetCriuGoOn;
}

// Runs before this node votes. Unless the migration is post-copy, the pager must have all memory,
// so that the tree no longer needs the source or the mount's daemon. Returns false if the migration
// is over, or if the pager has ended.
bool Hold::await_memory() const {
  auto record = store_.read(id_, role_);
  if (!record || tree_ >= record->trees.size()) return true;
  if (!record->plan.moves_memory_apart() || record->plan.may_run_before_memory()) return true;
  const auto work = store_.make_work_directory(id_, role_, tree_);
  if (!work) return log(work.error().message), false;
  while (access((*work + kMemoryCompleteFile).c_str(), F_OK) != 0) {
    if (pages_server_is_lost(*work) || !is_alive(criu_) || is_over(record->state())) return false;
    if (auto next = store_.wait(id_, role_, record->version, kMemoryInterval)) record = next;
  }
  return true;
}

bool Hold::at_target() {
  if (!await_memory()) return kStopCriu;
  auto record = change([&](OwnershipRecord& latest) { return note_ready(latest); });
  if (!record) {
    log(record.error().message);
    return kStopCriu;
  }
  for (;;) {
    switch (record->state()) {
      case MigrationState::kAborted:
        return kStopCriu;
      case MigrationState::kRunning:
      case MigrationState::kFinished:
        return let_run_here();
      case MigrationState::kRestoring:
        // Not all trees are ready: this node has not voted and may still abort.
        if (is_overdue(*record)) {
          (void)store_.advance(id_, role_, MigrationState::kAborted, [&](auto& latest) -> Status {
            latest.error = "not all processes were restored within --timeout";
            return {};
          });
        }
        break;
      default:
        break;  // in doubt: waits without a limit
    }
    if (!is_alive(criu_)) return kStopCriu;
    auto next = store_.wait(id_, role_, record->version, kLookInterval);
    if (next) record = std::move(next);
  }
}

}  // namespace

int64_t read_freeze_began_ns(const std::string& work_directory) {
  std::ifstream file(work_directory + "/freeze-began");
  int64_t at = 0;
  return file >> at ? at : 0;
}

void note_freeze_began(const std::string& work_directory) {
  std::ofstream(work_directory + "/freeze-began") << realtime_ns() << "\n";
}

bool MigrationHook::lets_criu_go_on() const {
  ignore_sigpipe();
  auto store = RecordStore::open(state_directory);
  if (!store) {
    log(store.error().message);
    return kStopCriu;
  }
  if (role == "source") return Hold(*store, id, MigrationRole::kSource, tree, criu).at_source();
  return Hold(*store, id, MigrationRole::kTarget, tree, criu, restored_root).at_target();
}

}  // namespace ppmr
