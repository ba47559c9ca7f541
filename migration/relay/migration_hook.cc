#include "migration/relay/migration_hook.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "daemon/command_line/output.h"
#include "migration/relay/connections_of_tree.h"
#include "migration/relay/held_locks.h"
#include "migration/relay/source_driver.h"
#include "migration/relay/target_driver.h"
#include "processes/carried/carried_state.h"
#include "processes/frozen_group.h"
#include "processes/frozen_tasks.h"
#include "processes/restorer_wait.h"
#include "processes/watched_tasks.h"
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
// How long the target waits for locks that the source's tasks release with their death.
constexpr milliseconds kLockPatience{10'000};
// How long a hook whose coordinator died tries to notify the target.
constexpr milliseconds kNotifyPatience{10'000};

constexpr bool kLetCriuGoOn = true;
constexpr bool kStopCriu = false;

void log(const std::string& sentence) { print_to(stderr, "ppmr hook: {}\n", sentence); }

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

// Holds a tree at the source.
class SourceHold {
 public:
  SourceHold(const RecordStore& store, const MigrationHook& hook)
      : store_(store),
        id_(hook.id),
        tree_(hook.tree),
        criu_(identify(hook.criu).value_or(ProcessIdentity{})),
        images_(hook.images),
        driver_(store, hook.id) {}

  bool hold();

 private:
  Result<OwnershipRecord> note_held();
  Status write_carried(const std::vector<ProcessIdentity>& tasks) const;
  Status stop(const OwnershipRecord& record) const;
  bool let_run_on(const OwnershipRecord& record) const;
  void release(const OwnershipRecord& record) const;
  void look(OwnershipRecord& record);
  void finish_in_background() const;

  const RecordStore& store_;
  const std::string id_;
  const size_t tree_;
  const ProcessIdentity criu_;
  const std::string images_;
  SourceDriver driver_;
  std::string why_not_;  // why the tree cannot move
  std::string logged_;
};

// Records the frozen tasks, then stops them, and records that they are stopped.
Result<OwnershipRecord> SourceHold::note_held() {
  auto record = store_.read(id_, MigrationRole::kSource);
  if (!record) return record;
  if (tree_ >= record->trees.size()) {
    return failure(EINVAL, fmt::format("the record of migration {} has no tree {}", id_, tree_));
  }
  const TreeRecord& tree = record->trees[tree_];
  if (Status same = check_identity({tree.root, tree.root_start_time}, record->boot_id); !same) {
    (void)driver_.take(source_event::GiveUp{same.error().message});
    return failure(same.error());
  }
  auto tasks = tasks_of_tree(tree.root);
  if (!tasks) return failure(tasks.error());
  // Writes the state before the step Held: after that step, the coordinator sends the images.
  if (Status written = write_carried(*tasks); !written) {
    (void)driver_.take(source_event::GiveUp{written.error().message});
    return failure(written.error());
  }
  auto held = driver_.take(source_event::Held{tree_, std::move(*tasks), criu_});
  if (!held) return failure(held.error());
  if (held->record.plan.original_goes_on) return held->record;
  if (Status stopped = stop(held->record); !stopped) {
    why_not_ = stopped.error().message;
    return held->record;
  }
  for (;;) {
    auto noted = driver_.take(source_event::Stopped{tree_});
    if (noted) return noted->record;
    auto now = store_.read(id_, MigrationRole::kSource);
    if (now && now->state() != MigrationState::kDumping) return now;
    // The record cannot be written, for example because the disk is full: the tree stays held.
    if (now) look(*now);
    std::this_thread::sleep_for(kLookInterval);
  }
}

Status SourceHold::write_carried(const std::vector<ProcessIdentity>& tasks) const {
  const auto work = store_.make_work_directory(id_, MigrationRole::kSource, tree_);
  if (!work) return failure(work.error());
  const auto before = load_carried_state(*work + "/" + kStateBeforeFile);
  if (!before) return failure(before.error());
  auto state = read_carried_state(tasks, *before ? &(*before)->inherited() : nullptr);
  if (!state) return failure(state.error());
  if (Status read = read_locks(tasks, *state); !read) return read;
  return write_carried_state(images_ + "/" + kCarriedStateFile, *state);
}

Status SourceHold::stop(const OwnershipRecord& record) const {
  const TreeRecord& tree = record.trees[tree_];
  auto tasks = FrozenTasks::open(tree.tasks);
  if (!tasks) return failure(tasks.error());
  tasks->stop();
  // In post-copy the stopped tasks stay while the target runs. In the other modes they are killed
  // before the target runs.
  if (record.plan.may_run_before_memory() && tree.container.name.empty()) {
    if (Status frozen = freeze_in_groups(tree.tasks, id_); !frozen) {
      log("held by CRIU and SIGSTOP only: " + frozen.error().message);
    }
  }
  if (Status held = tasks->check_held_by(criu_.pid); !held) return held;
  if (tasks->count() == tree.tasks.size()) return {};
  return failure(EBUSY, fmt::format("a process of the tree of process {} ended while the tree was "
                                    "frozen",
                                    tree.root));
}

bool SourceHold::hold() {
  auto record = note_held();
  if (!record) {
    log(record.error().message);
    return kStopCriu;
  }
  if (record->plan.original_goes_on) return kLetCriuGoOn;  // CRIU lets the tree run
  for (;;) {
    switch (source_verdict(*record, tree_)) {
      case HookVerdict::kStop:
        return let_run_on(*record);
      case HookVerdict::kLetGo:
        return kLetCriuGoOn;
      case HookVerdict::kHold:
        break;
    }
    look(*record);
    if (source_verdict(*record, tree_) != HookVerdict::kHold) continue;
    auto next = store_.wait(id_, MigrationRole::kSource, record->version, kLookInterval);
    if (next) {
      record = std::move(next);
    } else {
      // The record cannot be read, so the decision is unknown: keep holding.
      log(next.error().message);
      std::this_thread::sleep_for(kLookInterval);
    }
  }
}

// Takes the next step if the coordinator does not. Gives up if CRIU is dead, because a dead CRIU
// holds nothing.
void SourceHold::look(OwnershipRecord& record) {
  const bool decided = record.state() >= MigrationState::kCommitted;
  if (why_not_.empty() && !is_alive(criu_)) why_not_ = "CRIU died before the decision";
  auto step = !decided && !why_not_.empty() ? driver_.take(source_event::GiveUp{why_not_})
                                            : driver_.take(source_event::Look{});
  if (!step) {
    // A step that cannot be recorded decides nothing: the tree is neither released nor killed.
    const std::string why = "still held: " + step.error().message;
    if (std::exchange(logged_, why) != why) log(why);
    return;
  }
  record = std::move(step->record);
  if (record.state() == MigrationState::kAborted) {
    log("aborted, the process keeps running here: " + record.error);
  } else if (record.state() == MigrationState::kCommitted && !driver_.coordinator_works(record)) {
    AgentClient agent(parse_endpoint(record.endpoint));
    driver_.await_memory_for(kNotifyPatience);
    auto driven = driver_.carry_out({record, false, step->actions}, agent, kNotifyPatience);
    if (driven) record = std::move(*driven);
  }
}

// Lets the tree continue at once. The steps that follow do not delay it.
bool SourceHold::let_run_on(const OwnershipRecord& record) const {
  // If CRIU is alive, it releases the connections itself.
  if (!is_alive(criu_)) release(record);
  if (record.tasks_stopped) {
    // If this fails, the coordinator or the next recovery resumes the tasks: the record does not
    // say yet that they go on.
    const auto tasks = FrozenTasks::open(tasks_to_resume(record.trees[tree_]));
    if (tasks) {
      tasks->resume();
    } else {
      log(tasks.error().message);
    }
    // CRIU cannot let a task go on that is frozen in a control group.
    if (Status released = release_from_groups(record.trees[tree_].tasks, id_); !released) {
      log(released.error().message);
    }
  }
  if (!is_alive(record.coordinator)) finish_in_background();
  return kStopCriu;
}

void SourceHold::release(const OwnershipRecord& record) const {
  const std::string work = store_.work_path(id_, MigrationRole::kSource, tree_);
  const Status released = release_connections(record, record.trees[tree_], work);
  if (!released) log(released.error().message);
}

void SourceHold::finish_in_background() const {
  run_in_background([this] {
    // CRIU has to end first: it still holds the tasks.
    if (const auto criu = FrozenTasks::open({criu_})) criu->await_end();
    const auto record = store_.read(id_, MigrationRole::kSource);
    if (!record) return;
    AgentClient agent(parse_endpoint(record->endpoint));
    (void)SourceDriver(store_, id_).drive(agent, kNotifyPatience);
  });
}

// Holds a tree at the target.
class TargetHold {
 public:
  TargetHold(const RecordStore& store, const MigrationHook& hook)
      : store_(store),
        id_(hook.id),
        tree_(hook.tree),
        criu_(identify(hook.criu).value_or(ProcessIdentity{})),
        restored_root_(hook.restored_root),
        contact_(store, hook.id, MigrationRole::kTarget) {}

  bool hold();

 private:
  Result<OwnershipRecord> note_ready() const;
  void hand_to_supervisor() const;
  bool has_lost_a_task() const;
  Status apply_carried() const;
  Status take_locks_of_source() const;
  Status note_carried_error(const std::string& work, const Error& error) const;
  bool await_memory() const;
  bool let_run_here() const;

  const RecordStore& store_;
  const std::string id_;
  const size_t tree_;
  const ProcessIdentity criu_;
  const pid_t restored_root_;
  ContactClock contact_;
  std::vector<ProcessIdentity> held_;  // the restored tasks, without zombies
};

Result<OwnershipRecord> TargetHold::note_ready() const {
  target_event::Ready ready{tree_, held_, {}, criu_};
  for (const ProcessIdentity& task : ready.tasks) {
    ready.waiting_at.push_back(await_in_restorer(task.pid));
  }
  auto step = take_target_step(store_, id_, std::move(ready));
  if (!step) return failure(step.error());
  return std::move(step->record);
}

// Hands the tasks to the supervisor, which reports tasks that crash as soon as they run. The
// supervisor may be dead.
void TargetHold::hand_to_supervisor() const {
  const auto work = store_.make_work_directory(id_, MigrationRole::kTarget, tree_);
  if (!work) return;
  const Status handed = hand_over_tasks(*work, held_);
  if (!handed) log("a crash would not be noticed: " + handed.error().message);
}

// Returns whether a task was killed before it ran, for example by the kernel for lack of memory.
// CRIU would wait for that task forever.
bool TargetHold::has_lost_a_task() const {
  return !std::all_of(held_.begin(), held_.end(), is_alive);
}

// If it returns kStopCriu, the supervisor restores the tree again from the checkpoint.
bool TargetHold::let_run_here() const {
  const auto work = store_.make_work_directory(id_, MigrationRole::kTarget, tree_);
  if (!work) {
    log(work.error().message);
    return kStopCriu;
  }
  if (pages_server_is_lost(*work)) {
    log("the pager has ended before the process ran");
    return kStopCriu;
  }
  if (Status taken = take_locks_of_source(); !taken) {
    log(taken.error().message);
    return kStopCriu;
  }
  if (has_lost_a_task()) {
    log("a restored process was killed before it ran");
    return kStopCriu;
  }
  return kLetCriuGoOn;
}

// Runs before this node votes. Unless the migration is post-copy, the pager must have all memory,
// so that the tree no longer needs the source or the mount's daemon. Returns false if the migration
// is over, or if the pager has ended.
bool TargetHold::await_memory() const {
  auto record = store_.read(id_, MigrationRole::kTarget);
  if (!record) return log(record.error().message), false;
  if (tree_ >= record->trees.size()) return log("the record has no such tree"), false;
  if (!record->plan.moves_memory_apart() || record->plan.may_run_before_memory()) return true;
  const auto work = store_.make_work_directory(id_, MigrationRole::kTarget, tree_);
  if (!work) return log(work.error().message), false;
  while (access((*work + kMemoryCompleteFile).c_str(), F_OK) != 0) {
    if (pages_server_is_lost(*work) || !is_alive(criu_) || is_over(record->state())) return false;
    if (has_lost_a_task()) {
      const Error why{ESRCH, "a restored process was killed before it ran"};
      return log(note_carried_error(*work, why).error().message), false;
    }
    auto next = store_.wait(id_, MigrationRole::kTarget, record->version, kMemoryInterval);
    if (next) record = next;
  }
  return true;
}

// Applies the state that CRIU does not carry. If that fails, the move is aborted, because the
// source's copy still has the state.
Status TargetHold::apply_carried() const {
  const auto work = store_.make_work_directory(id_, MigrationRole::kTarget, tree_);
  if (!work) return failure(work.error());
  const auto state = load_carried_state(*work + "/" + kCarriedStateFile);
  if (!state) return failure(state.error());
  if (!*state) return {};
  const auto warnings = apply_carried_state(**state, held_);
  if (!warnings) return note_carried_error(*work, warnings.error());
  for (const std::string& warning : *warnings) log(warning);
  const Status taken = take_locks(**state, held_, LockTurn::kBeforeVote, {});
  return taken ? Status{} : note_carried_error(*work, taken.error());
}

// Writes the error to a file; the supervisor reports it.
Status TargetHold::note_carried_error(const std::string& work, const Error& error) const {
  std::ofstream(work + kCarriedErrorFile) << error.message << std::flush;
  return failure(error);
}

// Called after the decision, when the source's tasks are dead or about to be killed.
Status TargetHold::take_locks_of_source() const {
  const auto work = store_.make_work_directory(id_, MigrationRole::kTarget, tree_);
  if (!work) return failure(work.error());
  const auto state = load_carried_state(*work + "/" + kCarriedStateFile);
  if (!state) return failure(state.error());
  if (!*state || !carries_locks(**state)) return {};
  const Status taken = take_locks(**state, held_, LockTurn::kAfterDecision, kLockPatience);
  return taken ? Status{} : note_carried_error(*work, taken.error());
}

bool TargetHold::hold() {
  auto tasks = tasks_of_tree(restored_root_);
  if (!tasks) {
    log(tasks.error().message);
    return kStopCriu;
  }
  held_ = std::move(*tasks);
  if (!await_memory()) return kStopCriu;
  if (Status applied = apply_carried(); !applied) {
    log(applied.error().message);
    return kStopCriu;
  }
  hand_to_supervisor();
  auto record = note_ready();
  if (!record) {
    log(record.error().message);
    return kStopCriu;
  }
  for (;;) {
    switch (target_verdict(*record)) {
      case HookVerdict::kStop:
        return kStopCriu;
      case HookVerdict::kLetGo:
        return let_run_here();
      case HookVerdict::kHold:
        break;
    }
    if (!is_alive(criu_) || has_lost_a_task()) return kStopCriu;
    // Before the vote this node may still abort; after the vote, it waits without a limit. A
    // rehearsal is never decided.
    const bool may_abort =
        record->state() == MigrationState::kRestoring || record->plan.is_rehearsal;
    if (may_abort && contact_.silent_for() > milliseconds(record->hold_limit_ms)) {
      (void)take_target_step(store_, id_, target_event::Look{}, {.overdue = true});
    }
    auto next = store_.wait(id_, MigrationRole::kTarget, record->version, kLookInterval);
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
  if (role == "source") return SourceHold(*store, *this).hold();
  return TargetHold(*store, *this).hold();
}

}  // namespace ppmr
