#include "restart_loader/migration/migration_hook.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <thread>

#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/migration/notify_target.h"
#include "restart_loader/processes/frozen_tasks.h"
#include "restart_loader/processes/restorer_wait.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The other things that a hook looks at (who is still alive) are looked at so often.
constexpr milliseconds kLookInterval{200};
// How long a hook whose coordinator died tries to tell the target what was decided.
constexpr milliseconds kTellPatience{10'000};

constexpr bool kLetCriuGoOn = true;
constexpr bool kStopCriu = false;

// Whoever would hear it may be dead; fmt::print() would throw then.
void say(const std::string& sentence) {
  std::fputs(fmt::format("ppmr hook: {}\n", sentence).c_str(), stderr);
}

// One hold.
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
  bool too_long(const OwnershipRecord& record) const {
    return Clock::now() - began_ > milliseconds(record.hold_limit_ms);
  }
  std::string why_give_up(const OwnershipRecord& record) const;
  std::optional<bool> give_up(const std::string& why);
  bool let_run_on(const OwnershipRecord& record) const;
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
  bool complained_ = false;
};

// In a process of its own, because CRIU goes on only when it is told to.
void notify_target_in_background(const RecordStore& store, const OwnershipRecord& record) {
  if (fork() != 0) return;
  setsid();
  close_range(STDERR_FILENO + 1, ~0U, 0);  // CRIU has to notice when the relay dies
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
  AgentClient agent(parse_endpoint(record.endpoint));
  (void)notify_target(store, agent, record, kTellPatience);
  _exit(0);
}

Status Hold::note_held(OwnershipRecord& record) const {
  if (tree_ >= record.trees.size()) return failure(EINVAL, "there is no such tree");
  if (record.state != MigrationState::kDumping) {
    return failure(ECANCELED, std::string("the migration is ") + to_string(record.state));
  }
  TreeRecord& tree = record.trees[tree_];
  auto tasks = tasks_of_tree(tree.root);
  if (!tasks) return failure(tasks.error());
  tree.tasks = std::move(*tasks);
  tree.criu = criu_;
  tree.phase = TreePhase::kHeld;
  tree.held_ns = realtime_ns();
  if (record.all_trees(TreePhase::kHeld)) record.state = MigrationState::kFrozen;
  return {};
}

bool Hold::at_source() {
  auto record = change([&](OwnershipRecord& latest) { return note_held(latest); });
  if (!record) {
    say(record.error().message);
    return kStopCriu;
  }
  if (record->leave_running) return kLetCriuGoOn;  // which then lets it run
  for (;;) {
    switch (record->state) {
      case MigrationState::kAborted:
        return let_run_on(*record);
      case MigrationState::kCommitted:
      case MigrationState::kFinished:
        return finish_committed(*record);
      default:
        break;
    }
    if (const std::string why = why_give_up(*record); !why.empty()) {
      if (const auto verdict = give_up(why)) return *verdict;
    }
    auto next = store_.wait(id_, role_, record->version, kLookInterval);
    if (next) {
      record = std::move(next);
    } else {
      // Nothing was decided by us, and nobody can tell us that anything was.
      say(next.error().message);
      std::this_thread::sleep_for(kLookInterval);
    }
  }
}

std::string Hold::why_give_up(const OwnershipRecord& record) const {
  if (!is_alive(record.coordinator)) {
    return fmt::format("ppmr migrate (pid {}) died before the decision", record.coordinator.pid);
  }
  if (!is_alive(criu_)) return "CRIU died before the decision";
  if (too_long(record)) {
    return fmt::format("nothing was decided within {} s (--timeout)", record.hold_limit_ms / 1000);
  }
  return "";
}

// Nothing when that cannot be written down (the disk is full): then nobody may let the tasks go,
// nor kill them, until it can.
std::optional<bool> Hold::give_up(const std::string& why) {
  auto aborted =
      store_.advance(id_, role_, MigrationState::kAborted, [&](OwnershipRecord& record) -> Status {
        record.error = why;
        return {};
      });
  if (aborted) {
    const bool verdict = let_run_on(*aborted);
    notify_target_in_background(store_, *aborted);
    say("the process runs on here: " + why);
    return verdict;
  }
  auto record = store_.read(id_, role_);
  if (record && record->state == MigrationState::kAborted) return let_run_on(*record);
  if (record && (record->state == MigrationState::kCommitted || is_over(record->state))) {
    return finish_committed(*record);
  }
  if (!complained_) say("still held: " + why + ", but: " + aborted.error().message);
  complained_ = true;
  return std::nullopt;
}

bool Hold::let_run_on(const OwnershipRecord& record) const {
  if (record.tasks_stopped) {
    if (auto tasks = our_tasks(record)) tasks->let_go();
  }
  return kStopCriu;
}

// The coordinator kills the tasks. When it does not, that is ours to do.
bool Hold::finish_committed(OwnershipRecord record) {
  while (record.trees[tree_].phase != TreePhase::kComplete && is_alive(record.coordinator) &&
         is_alive(criu_) && !too_long(record)) {
    if (auto next = store_.wait(id_, role_, record.version, kLookInterval)) record = *next;
  }
  if (record.trees[tree_].phase == TreePhase::kComplete) return kLetCriuGoOn;
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
  if (tree_ >= record.trees.size()) return failure(EINVAL, "there is no such tree");
  if (is_over(record.state)) {
    return failure(ECANCELED, std::string("the migration is ") + to_string(record.state));
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
  if (record.state == MigrationState::kRestoring && record.all_trees(TreePhase::kReady)) {
    record.state = MigrationState::kReady;
  }
  return {};
}

// A restore that is stopped here is made again from the checkpoint.
bool Hold::let_run_here() const {
  const auto work = store_.make_work_directory(id_, role_, tree_);
  if (!work) {
    say(work.error().message);
    return kStopCriu;
  }
  if (pages_server_is_lost(*work)) {
    say("criu lazy-pages has ended before the process ran");
    return kStopCriu;
  }
  return kLetCriuGoOn;
}

bool Hold::at_target() {
  auto record = change([&](OwnershipRecord& latest) { return note_ready(latest); });
  if (!record) {
    say(record.error().message);
    return kStopCriu;
  }
  for (;;) {
    switch (record->state) {
      case MigrationState::kAborted:
        return kStopCriu;
      case MigrationState::kRunning:
      case MigrationState::kFinished:
        return let_run_here();
      case MigrationState::kRestoring:
        // Not all trees have voted yet: this node may still decide for itself.
        if (too_long(*record)) {
          (void)store_.advance(id_, role_, MigrationState::kAborted, [&](auto& latest) -> Status {
            latest.error = "not all processes were restored in time";
            return {};
          });
        }
        break;
      default:
        break;  // in doubt: waits, for as long as it takes
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

void note_freeze_begins(const std::string& work_directory) {
  std::ofstream(work_directory + "/freeze-began") << realtime_ns() << "\n";
}

bool MigrationHook::lets_criu_go_on() const {
  // What it says goes to its coordinator, which may be dead.
  std::signal(SIGPIPE, SIG_IGN);
  auto store = RecordStore::open(state_directory);
  if (!store) {
    say(store.error().message);
    return kStopCriu;
  }
  if (role == "source") return Hold(*store, id, MigrationRole::kSource, tree, criu).at_source();
  return Hold(*store, id, MigrationRole::kTarget, tree, criu, restored_root).at_target();
}

}  // namespace ppmr
