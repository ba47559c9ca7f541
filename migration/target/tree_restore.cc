// Restores a tree. If CRIU dies before the tree runs, restores the tree again: the checkpoint stays
// until the tree has all of its memory. There must never be two copies, so before every attempt the
// supervisor settles the remains of the last attempt (restore_remains.h).
//
// All processes that CRIU creates stay descendants of the supervisor even if CRIU is killed: the
// supervisor is their subreaper until the tree runs.
#include "migration/target/tree_restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/ending_signals.h"
#include "base/exit_code.h"
#include "base/whole_file.h"
#include "daemon/command_line/output.h"
#include "migration/relay/criu_relay.h"
#include "migration/relay/held_criu.h"
#include "migration/relay/migration_hook.h"
#include "migration/relay/target_driver.h"
#include "migration/relay/unit_fate.h"
#include "migration/target/accepted_images.h"
#include "migration/target/rehearsal_room.h"
#include "migration/target/restore_remains.h"
#include "migration/target/restore_report.h"
#include "migration/target/takeover.h"
#include "migration/target/tree_arrival.h"
#include "mount/mount_table.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/carried/carried_state.h"
#include "processes/frozen_tasks.h"
#include "processes/lonely_network.h"
#include "processes/own_namespace.h"
#include "processes/process_identity.h"
#include "processes/watched_tasks.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/relay_marks.h"
#include "restart_loader/criu/restore.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kTarget;
constexpr const char* kLog = "restore.log";
constexpr int kAttemptsMax = 3;
constexpr milliseconds kBetweenAttempts{500};
constexpr milliseconds kBetweenWrites{1000};
constexpr milliseconds kLetGoPatience{10'000};
constexpr milliseconds kResumePatience{10'000};
constexpr milliseconds kUnitPatience{10'000};
// How long CRIU may take to end after an abort. Normally the hook makes CRIU fail. But CRIU 3.17
// waits without end for a process that was killed during its restore.
constexpr milliseconds kAbortPatience{5000};
// CRIU 4.2, too, waits without end for a process that was killed after the decision and before CRIU
// lets it run.
constexpr milliseconds kDeathPatience{3000};
// How long the supervisor watches a tree that runs, before it reports that the tree has moved.
constexpr milliseconds kFirstSteps{100};

void log(const std::string& sentence) { print_to(stdout, "{}\n", sentence); }

// Returns /dev/null in place of the output of a unit, because a rehearsal starts no unit.
Result<UniqueFd> discarded_output() {
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return system_failure("open", "/dev/null");
  return null;
}

class TreeRestore {
 public:
  TreeRestore(RecordStore store, const TreeRestoreCommand& command)
      : store_(std::move(store)), id_(command.id), tree_(command.tree) {}
  int run();

 private:
  int supervise();
  int rehearse();
  int watch_running();
  Status record_namespace_init(pid_t child) const;
  Result<OwnershipRecord> read() const { return store_.read(id_, kRole); }
  Result<OwnershipRecord> change(const RecordStore::Change& change) const {
    return store_.change(id_, kRole, change);
  }
  // Waits for the images and the files, and checks the images.
  Status await_arrival();
  bool is_container() const { return !record_.trees[tree_].container.name.empty(); }
  Status prepare();
  Result<std::unique_ptr<CriuProcess>> start_criu(const std::string& images);
  Result<std::unique_ptr<CriuProcess>> start_runc(const std::string& images) const;
  Status note_start_of_runc(const Runc& runc, const std::string& name) const;
  bool was_aborted_for(milliseconds time);
  // Returns why CRIU should be ended; empty: it should go on.
  std::string why_criu_is_in_vain();
  // `error`: the error of restore_once().
  CriuEnd end_of_criu(const Error& error) const;
  Result<std::unique_ptr<Restore>> restore_once();
  // Settles the remains of the last restore and sets runs_. On an error the supervisor gives up.
  Status settle();
  void forget_tasks();
  void insist(const TargetEvent& event) const;
  void note_running(pid_t pid);
  void report_outcome(const std::string& outcome, const std::string& reason = "") const;
  void let_resume_rdma() const;
  int finish(const std::string& lost);
  Status forget_epochs_of_tree() const;
  bool pager_succeeded() const;
  int await_pages();
  std::string why_lost() const;
  // Returns which process a signal ended during the first steps of the tree, and which signal.
  // Empty: no signal ended the root, and no other process has crashed.
  std::string why_ended_at_once();
  void stay_as_parent() const;
  int give_up(const Error& error);

  const RecordStore store_;
  const std::string id_;
  const size_t tree_;
  OwnershipRecord record_;
  std::string work_;
  std::string criu_;
  std::optional<TreeArrival> arrival_;      // none: there is no work directory
  std::optional<AcceptedImages> accepted_;  // none: not yet
  std::optional<HeldCriu> prepared_;
  int64_t sealed_ns_ = 0;  // when this supervisor saw the seal; 0: not yet
  int64_t restore_began_ns_ = 0;
  pid_t running_root_ = 0;
  Clock::time_point runs_since_;
  bool runs_ = false;  // the tree runs, or has run and ended
  std::optional<Clock::time_point> saw_abort_;
  std::optional<Clock::time_point> saw_death_;  // of a process that CRIU restores
  WatchedTasks watched_;                        // the restored tasks, since before they run
  CriuEnd criu_end_ = CriuEnd::kKilled;
};

Status TreeRestore::prepare() {
  if (is_container()) return {};
  std::vector<std::string> bridged;
  for (const uint64_t inode : record_.unit.journal_sockets) {
    bridged.push_back(fmt::format("socket:[{}]", inode));
  }
  UniqueFd output;
  if (!bridged.empty()) {
    auto found =
        record_.plan.is_rehearsal ? discarded_output() : output_of_unit(record_, kUnitPatience);
    if (!found) return failure(found.error());
    output = std::move(*found);
  }
  auto held = HeldCriu::start(store_, {.criu = criu_,
                                       .id = id_,
                                       .role = kRole,
                                       .tree = tree_,
                                       .work = work_,
                                       .bridged = std::move(bridged),
                                       .bridge = output.get(),
                                       .show = log});
  if (!held) return failure(held.error());
  prepared_ = std::move(*held);
  // Records CRIU's pid. If this supervisor dies, the next supervisor must be able to find CRIU.
  auto criu = identify(prepared_->process().pid());
  if (!criu) return failure(criu.error());
  auto noted = change([&](OwnershipRecord& record) -> Status {
    record.trees[tree_].criu = *criu;
    return {};
  });
  if (!noted) return failure(noted.error());
  return {};
}

Result<std::unique_ptr<CriuProcess>> TreeRestore::start_criu(const std::string& images) {
  if (!prepared_) {
    if (Status again = prepare(); !again) return failure(again.error());
  }
  HeldCriu criu = std::move(*prepared_);
  prepared_.reset();
  std::vector<std::string> options = record_.criu_options;
  options.insert(options.end(), {"--pidfile", "pidfile"});
  if (record_.plan.restores_lazily()) options.push_back("--lazy-pages");
  // Without this option CRIU is the parent, and ends.
  if (accepted_->needs_parent) options.push_back("--restore-sibling");
  const Status asked = criu.request(CriuRequest::kRestore, {images, kLog, std::move(options)});
  if (!asked) return failure(asked.error());
  return criu.release();
}

// Restores through runc, so that runc on this node has records of the container and its control
// groups.
Result<std::unique_ptr<CriuProcess>> TreeRestore::start_runc(const std::string& images) const {
  const ContainerRecord& container = record_.trees[tree_].container;
  const Status relay = write_relay_script(store_, id_, kRole, tree_, criu_, work_,
                                          runc_configuration(record_.criu_options));
  if (!relay) {
    return failure(relay.error());
  }
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto passed = runc_options(record_.criu_options);
  if (!passed) return failure(passed.error());
  std::vector<std::string> words = {
      "restore", "--detach",    "--bundle", container.bundle, "--image-path",
      images,    "--work-path", work_,      "--pid-file",     work_ + "/pidfile"};
  if (record_.plan.restores_lazily()) words.push_back("--lazy-pages");
  words.insert(words.end(), passed->begin(), passed->end());
  words.push_back(container.name);
  if (Status noted = note_start_of_runc(*runc, container.name); !noted)
    return failure(noted.error());
  return CriuProcess::start({.argv = runc->restore_command(work_, words),
                             .log_file = work_ + "/restore.out",
                             .show = log});
}

// runc makes the directory of the container before it starts CRIU, and the record of the container
// afterwards. If runc is killed in between, it lists no container, and refuses to make another one
// of that name.
Status TreeRestore::note_start_of_runc(const Runc& runc, const std::string& name) const {
  if (runc.has_directory(name)) return {};  // runc will report that the name is taken
  return leave_mark(work_, RelayMark::kRuntimeStarted, read_boot_id());
}

bool TreeRestore::was_aborted_for(milliseconds time) {
  const auto record = read();
  if (!record || record->state() != MigrationState::kAborted) return false;
  if (!saw_abort_) saw_abort_ = Clock::now();
  return Clock::now() - *saw_abort_ >= time;
}

std::string TreeRestore::why_criu_is_in_vain() {
  if (was_aborted_for(kAbortPatience)) return "its migration was aborted";
  const auto record = read();
  if (!record) return "";
  // The hook has recorded the tasks that were alive. If CRIU blocks before the hook runs, the time
  // limit ends the migration.
  const auto& tasks = record->trees[tree_].tasks;
  const auto dead = std::find_if_not(tasks.begin(), tasks.end(), is_alive);
  // A child may end as soon as CRIU lets it run. CRIU then no longer waits for the child.
  const bool may_end = dead != tasks.begin() && may_have_run(work_, CriuEnd::kInVain);
  if (dead == tasks.end() || may_end) {
    saw_death_.reset();
    return "";
  }
  if (!saw_death_) saw_death_ = Clock::now();
  if (Clock::now() - *saw_death_ < kDeathPatience) return "";
  return fmt::format("process {} was killed before it ran, and CRIU did not notice", dead->pid);
}

CriuEnd TreeRestore::end_of_criu(const Error& error) const {
  const bool is_hopeless = error.errno_value == ECANCELED && saw_death_;
  if (is_hopeless) return CriuEnd::kInVain;
  return error.errno_value == EOWNERDEAD ? CriuEnd::kKilled : CriuEnd::kByItself;
}

Result<std::unique_ptr<Restore>> TreeRestore::restore_once() {
  saw_death_.reset();
  auto watched = WatchedTasks::listen(work_);
  watched_ = watched ? std::move(*watched) : WatchedTasks();
  if (!watched) log("a crash would not be noticed: " + watched.error().message);
  if (record_.plan.may_run_before_memory()) {
    const Status kept = arrival_->keep_room_for_memory(accepted_->images.path());
    if (!kept) return failure(kept.error());
  }
  if (Status offered = arrival_->offer_to_criu(); !offered) return failure(offered.error());
  auto restore =
      Restore::create({.criu = criu_,
                       .images = accepted_->images.path(),
                       .memory = memory_path(record_, record_.trees[tree_]),
                       .bundle = accepted_->images.bundle_path(),
                       .post_copy = record_.plan.may_run_before_memory(),
                       // The original of a rehearsal goes on, and writes files.
                       .any_file_sizes = record_.plan.is_rehearsal,
                       .leaves_locks = accepted_->has_locks,
                       .leaves_process_locks = accepted_->has_process_locks,
                       .work = work_,
                       .lazily = record_.plan.restores_lazily(),
                       .start =
                           [this](const std::string& images) {
                             restore_began_ns_ = realtime_ns();
                             return is_container() ? start_runc(images) : start_criu(images);
                           },
                       .name = is_container() ? "runc restore" : "criu restore",
                       .show_line = log,
                       .show_notice = log,
                       .stops_on_signal = false,
                       .why_cancelled = [this] { return why_criu_is_in_vain(); }});
  if (!restore) return failure(restore.error());
  const std::string carried_error = work_ + kCarriedErrorFile;
  unlink(carried_error.c_str());
  const auto pid = (*restore)->run();
  if (!pid) {
    auto why = read_whole_file(carried_error);
    if (!why || why->empty()) return failure(pid.error());
    return failure(pid.error().errno_value, std::move(*why));
  }
  note_running(*pid);
  return std::move(*restore);
}

Status TreeRestore::settle() {
  auto record = read();
  if (!record) return failure(record.error());
  record_ = std::move(*record);
  // A CRIU that an earlier supervisor started still holds the tree, and now lets it run. If this
  // supervisor killed CRIU instead, it would have to restore the tree again, from a checkpoint that
  // may be gone.
  if (record_.state() == MigrationState::kRunning) {
    if (const auto criu = FrozenTasks::open({record_.trees[tree_].criu})) {
      (void)criu->await_end(kLetGoPatience);
    }
  }
  auto runs = settle_remains(record_.trees[tree_], work_, criu_end_);
  if (!runs) return failure(runs.error());
  runs_ = *runs;
  if (!runs_ && !record_.trees[tree_].tasks.empty()) forget_tasks();
  return {};
}

// Removes the tasks of the last restore from the record. Otherwise why_criu_is_in_vain() would take
// them for dead tasks of the next restore, and end that restore if it takes long.
void TreeRestore::forget_tasks() {
  auto forgotten = change([this](OwnershipRecord& record) -> Status {
    record.trees[tree_].tasks.clear();
    record.trees[tree_].waiting_at.clear();
    return {};
  });
  if (!forgotten) return log(forgotten.error().message);
  record_ = std::move(*forgotten);
}

void TreeRestore::report_outcome(const std::string& outcome, const std::string& reason) const {
  const auto record = read();
  report_restore(record ? *record : record_, tree_,
                 {.outcome = outcome, .reason = reason, .sealed_ns = sealed_ns_, .work = work_});
}

// Repeats the step while the disk is full or fails: the record must show what has happened to the
// tree.
void TreeRestore::insist(const TargetEvent& event) const {
  for (;;) {
    const auto step = take_target_step(store_, id_, event);
    if (step) return;
    const int error = step.error().errno_value;
    log(step.error().message);
    if (error != ENOSPC && error != EDQUOT && error != EIO) return;
    std::this_thread::sleep_for(kBetweenWrites);
  }
}

void TreeRestore::note_running(pid_t pid) {
  runs_ = true;
  running_root_ = pid;
  runs_since_ = Clock::now();
  log(fmt::format("running: pid {}", pid));
  const int64_t since = runs_since_ns(work_);
  insist(target_event::Runs{.tree = tree_,
                            .began_ns = restore_began_ns_,
                            .since_ns = since != 0 ? since : realtime_ns()});
  // From now on, orphans of the running tree become children of init instead of the supervisor.
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  let_resume_rdma();
  report_outcome("running");
}

// Asks the processes of the tree that released RDMA for the move to use it again. A process that
// does not reply resumes by itself after a time limit of its own.
void TreeRestore::let_resume_rdma() const {
  const auto record = read();
  if (!record || record->trees[tree_].tasks.empty()) return;
  const Status resumed = resume_rdma({record->trees[tree_].tasks.front().pid}, kResumePatience);
  if (!resumed) log(resumed.error().message);
}

// `lost`: why the tree has lost memory; empty: the tree has all its memory.
int TreeRestore::finish(const std::string& lost) {
  std::string end;
  if (!lost.empty()) {
    const auto latest = read();  // the hook has recorded the restored tasks
    const std::string fate =
        describe(end_lost_tree(work_, (latest ? *latest : record_).trees[tree_].tasks));
    log(fmt::format("the process {}", fate));
    end = fmt::format("MEMORY LOST: process {} {}. Cause: {}. Logs: {}", record_.trees[tree_].root,
                      fate, lost, work_);
  } else if (const std::string how = why_ended_at_once(); !how.empty()) {
    end = fmt::format("{} as soon as it ran at the target. Logs: {}", how, work_);
    log(end);
  }
  arrival_->remove_mounts();
  insist(target_event::Complete{tree_, end});
  report_outcome(end.empty() ? "complete" : "lost", lost.empty() ? end : lost);
  if (!end.empty()) {
    const bool lives = lost.empty() && kill(running_root_, 0) == 0;
    if (lives && accepted_ && accepted_->needs_parent) stay_as_parent();
    return to_int(ExitCode::kPagesLost);
  }
  const TreeRecord& tree = record_.trees[tree_];
  const Status removed =
      is_taken_over(tree) ? forget_epochs_of_tree() : remove_checkpoint(record_, tree);
  if (!removed) log(removed.error().message);
  if (accepted_ && accepted_->needs_parent) stay_as_parent();
  return to_int(ExitCode::kSuccess);
}

Status TreeRestore::forget_epochs_of_tree() const {
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  return forget_epochs(*epochs, record_.trees[tree_].protected_as, id_);
}

// The restored root is a child of this supervisor, unless an earlier supervisor restored it.
std::string TreeRestore::why_ended_at_once() {
  if (running_root_ <= 0) return "";
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, running_root_, 0)));
  pollfd end{pidfd.get(), POLLIN, 0};
  const auto ended_by = [](pid_t pid, int signal) {
    return fmt::format("process {} was ended by signal {} ({})", pid, signal, strsignal(signal));
  };
  const auto left = std::chrono::ceil<milliseconds>(runs_since_ + kFirstSteps - Clock::now());
  if (pidfd && left.count() > 0) (void)poll(&end, 1, static_cast<int>(left.count()));
  siginfo_t info{};
  const auto id = static_cast<id_t>(running_root_);
  const bool has_ended =
      waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  if (has_ended && (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED)) {
    return ended_by(record_.trees[tree_].root, info.si_status);
  }
  const auto crashed = watched_.crashed();
  if (!crashed) log("a crash would not be noticed: " + crashed.error().message);
  return crashed && *crashed ? ended_by((*crashed)->pid, (*crashed)->signal) : "";
}

void TreeRestore::stay_as_parent() const {
  log("stays, because the process asked for a signal when its parent ends");
  siginfo_t info{};
  const auto id = static_cast<id_t>(running_root_);
  while (waitid(P_PID, id, &info, WEXITED) != 0 && errno == EINTR) {
  }
}

// Waits for the pages of a tree if this supervisor did not observe the end of the restore: an
// earlier supervisor began the restore, or CRIU lost its relay. The pager may still be at work.
int TreeRestore::await_pages() {
  await_pages_server(work_);
  return finish(pager_succeeded() ? "" : "the pager died");
}

// Call it when the pager has ended. The pager is not a child of this process, so its exit code is
// unknown; but its last act after a success is to write this file.
bool TreeRestore::pager_succeeded() const {
  if (!has_pages_server(work_)) return true;
  return !guard_killed(work_) && access((work_ + kFaultTimesFile).c_str(), F_OK) == 0;
}

// Returns why the tree can never be restored; empty: another attempt may succeed.
std::string TreeRestore::why_lost() const {
  if (access(images_path(record_, record_.trees[tree_]).c_str(), F_OK) != 0 &&
      (errno == ENOENT || errno == ENOTCONN)) {
    return "its checkpoint was lost with the target's daemon";
  }
  // After the decision, a session with the source can fail only in post-copy.
  if (!record_.plan.may_run_before_memory()) return "";
  const std::string memory = memory_path(record_, record_.trees[tree_]);
  const UniqueFd file(open(memory.c_str(), O_RDONLY | O_CLOEXEC));
  return !file && errno == EIO ? "its memory did not arrive from the source" : "";
}

int TreeRestore::give_up(const Error& error) {
  log(error.message);
  const auto before = read();
  const bool was_rehearsed = before && before->plan.is_rehearsal &&
                             before->state() == MigrationState::kAborted && before->error.empty();
  report_outcome(was_rehearsed ? "rehearsed" : "failed", was_rehearsed ? "" : error.message);
  const std::string lost = why_lost();
  const pid_t root = record_.trees[tree_].root;
  const std::string why =
      lost.empty()
          ? fmt::format("process {}: {}. Logs at the target: {}", root, error.message, work_)
          : fmt::format("MEMORY LOST: process {} cannot be restored, {}: {}. Logs: {}", root, lost,
                        error.message, work_);
  insist(target_event::Failed{.tree = tree_, .error = why, .for_good = !lost.empty()});
  if (auto record = read(); record && record->state() == MigrationState::kAborted) {
    if (arrival_) arrival_->discard();
    (void)remove_checkpoint(record_, record_.trees[tree_]);
  }
  return to_int(ExitCode::kRestoreFailed);
}

int TreeRestore::run() {
  auto begun = store_.change(id_, kRole, [&](OwnershipRecord& record) -> Status {
    if (tree_ >= record.trees.size())
      return failure(EINVAL, fmt::format("the record of migration {} has no tree {}", id_, tree_));
    const TreeRecord& tree = record.trees[tree_];
    if (is_alive(tree.supervisor) && tree.supervisor != identify_self())
      return failure(EBUSY, fmt::format("the tree of process {} already has a supervisor (pid {})",
                                        tree.root, tree.supervisor.pid));
    record.trees[tree_].supervisor = identify_self();
    record.trees[tree_].error.clear();
    return {};
  });
  if (!begun) return log(begun.error().message), to_int(ExitCode::kFailure);
  record_ = std::move(*begun);
  // A container has namespaces of its own, and its port is attached only after a decision.
  const bool is_alone = record_.plan.is_rehearsal && !is_container();
  if (!record_.plan.original_goes_on && !is_alone) return supervise();
  auto kept = run_in_own_pid_namespace(
      record_.mountpoint, [this](pid_t child) { return record_namespace_init(child); },
      [this, is_alone] { return is_alone ? rehearse() : supervise(); });
  if (kept) return *kept;
  // A signal killed the namespace init. After the commit, the agent starts another supervisor.
  if (kept.error().errno_value == ECHILD) {
    return log(kept.error().message), to_int(ExitCode::kFailure);
  }
  return give_up(kept.error());
}

// Records the namespace init as the supervisor of the copy: when that init ends, the kernel kills
// all processes in the copy's pid namespace.
Status TreeRestore::record_namespace_init(pid_t child) const {
  auto init = identify(child);
  if (!init) return failure(init.error());
  auto noted = change([&](OwnershipRecord& record) -> Status {
    record.trees[tree_].supervisor = *init;
    return {};
  });
  if (!noted) return failure(noted.error());
  return {};
}

// This process is process 1 of a pid namespace. When it ends, the kernel kills the processes that
// it has restored.
int TreeRestore::rehearse() {
  if (Status alone = enter_lonely_network(); !alone) return give_up(alone.error());
  return supervise();
}

// Continues with a tree that runs: CRIU has let it go, or an earlier supervisor has seen it run.
int TreeRestore::watch_running() {
  if (record_.plan.is_rehearsal) return give_up({EPERM, "what was rehearsed must not run"});
  note_running(record_.trees[tree_].root);
  return await_pages();
}

Status TreeRestore::await_arrival() {
  if (Status begun = arrival_->begin(); !begun) return begun;
  const auto inode = arrival_->await_sealed();
  if (!inode) return failure(inode.error());
  sealed_ns_ = realtime_ns();
  auto accepted = accept_images(record_, tree_, *inode, work_);
  if (!accepted) return failure(accepted.error());
  accepted_ = std::move(*accepted);
  if (Status owned = arrival_->check_owner_of_memory(); !owned) return owned;
  const Status placed = arrival_->await_files([this] { return was_aborted_for(milliseconds{0}); });
  if (!placed || !record_.plan.is_rehearsal || is_container()) return placed;
  return shield_socket_directories(accepted_->images.path(), accepted_->images.bundle(), work_);
}

int TreeRestore::supervise() {
  auto work = store_.make_work_directory(id_, kRole, tree_);
  if (!work) return give_up(work.error());
  work_ = *work;
  arrival_.emplace(record_, tree_, work_, [this] { return read(); });
  auto criu = find_criu();
  if (!criu) return give_up(criu.error());
  criu_ = *criu;
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  // An earlier supervisor may have died at any step. Continues from that step.
  const TreeRecord& tree = record_.trees[tree_];
  if (tree.phase == TreePhase::kComplete) return to_int(ExitCode::kSuccess);
  if (tree.phase == TreePhase::kRunning) return await_pages();
  if (Status settled = settle(); !settled) return give_up(settled.error());
  if (runs_) return watch_running();
  if (Status prepared = prepare(); !prepared) return give_up(prepared.error());
  if (Status arrived = await_arrival(); !arrived) return give_up(arrived.error());
  for (int attempt = 1;; ++attempt) {
    forget_restore(work_);
    unlink((work_ + kFaultTimesFile).c_str());
    auto restore = restore_once();
    if (restore) {
      const Status pages = (*restore)->finish_pages();
      return finish(pages ? "" : pages.error().message);
    }
    log(restore.error().message);
    criu_end_ = end_of_criu(restore.error());
    if (Status settled = settle(); !settled) return give_up(settled.error());
    if (runs_) return watch_running();
    const bool promised = record_.state() != MigrationState::kRestoring &&
                          !is_over(record_.state()) && !record_.plan.is_rehearsal;
    if (!promised || attempt == kAttemptsMax) return give_up(restore.error());
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace

int TreeRestoreCommand::run() const {
  ignore_sigpipe();
  ignore_ending_signals();  // only the migration's record ends a restore
  auto store = RecordStore::open(state_directory);
  if (!store) {
    log(store.error().message);
    return to_int(ExitCode::kFailure);
  }
  return TreeRestore(*store, *this).run();
}

}  // namespace ppmr
