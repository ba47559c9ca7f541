// The steps up to the decision, and the outcome. migration_trees.cc has the thread of each tree,
// migration_decision.cc the decision and what follows it.
#include "migration/source/migration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/without_exceptions.h"
#include "daemon/control/control_client.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/relay/agent_requests.h"
#include "migration/relay/audit_events.h"
#include "migration/relay/unit_fate.h"
#include "migration/source/changed_limits.h"
#include "migration/source/pause.h"
#include "migration/source/rival.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/control_groups.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kSource;
// This contact comes before any freeze, so a busy target costs only time.
constexpr milliseconds kFirstContact{10'000};
constexpr milliseconds kLookSlice{1000};
// The coordinator aborts if, before the decision, it cannot reach the target for this long, or if
// the source's daemon is silent for this long.
constexpr milliseconds kReachPatience{5000};
constexpr milliseconds kRootCausePatience{500};  // the processes are frozen in the meantime
// During the dumps: the interval at which the coordinator checks the target and its own
// interruption.
constexpr milliseconds kLookInterval{250};

// Returns the program name in a form that can be part of a checkpoint name.
std::string plain(const std::string& name) {
  std::string text;
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text.empty() ? "process" : text;
}

const char* outcome_name(ExitCode exit_code, bool is_rehearsal) {
  if (is_rehearsal) return exit_code == ExitCode::kSuccess ? "would-move" : "would-stay";
  switch (exit_code) {
    case ExitCode::kSuccess:
      return "moved";
    case ExitCode::kMigrationAborted:
      return "stayed";
    case ExitCode::kPagesLost:
      return "lost";
    default:
      return "unfinished";
  }
}

std::vector<ReportedTree> reported(const std::vector<TreePlan>& trees) {
  std::vector<ReportedTree> reported;
  for (const TreePlan& tree : trees) reported.push_back({tree.root.pid, tree.name});
  return reported;
}

Result<OwnershipRecord> record_in(const json& answer) {
  const auto record = answer.find("record");
  if (record == answer.end())
    return failure(EPROTO,
                   "the target's reply has no record (install the same ppmr on both nodes)");
  return parse_record(*record);
}

}  // namespace

Migration::Migration(const RecordStore& store, const MigrationSettings& settings,
                     std::vector<TreePlan> trees, JobSlots& slots, const std::atomic<bool>& stop)
    : store_(store),
      settings_(settings),
      slots_(slots),
      stop_(stop),
      id_(settings.id.empty() ? random_migration_id() : settings.id),
      agent_(parse_endpoint(settings.endpoint)),
      trees_(trees.size()),
      report_(store, id_, reported(trees), settings.on_event),
      driver_(store, id_) {
  for (size_t i = 0; i < trees.size(); ++i) trees_[i].plan = std::move(trees[i]);
  driver_.know_memory_needed(settings.plan.may_run_before_memory());
}

// The threads still run if an exception ended run().
Migration::~Migration() {
  has_given_up_ = true;
  for (Tree& tree : trees_) {
    if (tree.thread.joinable()) tree.thread.join();
  }
}

// The steps up to the decision. An exception must abort the migration, not end the process, which
// may have other migrations.
Status Migration::move_up_to_decision() {
  if (stop_) return failure(EINTR, "interrupted");
  Status done = prepare();
  if (!done) return done;
  for (size_t i = 0; i < trees_.size(); ++i) {
    trees_[i].thread = std::thread([this, i] { dump(trees_[i], i); });
  }
  done = await_all_sealed();
  if (done) done = await_ready();
  if (done) done = commit();
  return done;
}

MigrationOutcome Migration::run() {
  Status done = without_exceptions([this] { return move_up_to_decision(); });
  // Another migration moves the trees: this one cannot say where they run, so it lists none.
  if (!done && done.error().errno_value == EALREADY && !is_recorded_) {
    return {ExitCode::kMigrationAborted, done.error().message, id_, {}};
  }
  if (!done && !is_recorded_) return outcome(ExitCode::kMigrationAborted, done.error().message);
  if (!done) {
    const Status aborted = abort(done.error());
    resume_rdma_here();
    if (aborted) run_hook_after("after-abort", done.error().message);
    if (aborted) {
      auto stayed = outcome(ExitCode::kMigrationAborted, done.error().message);
      stayed.breaks_promise = done.error().errno_value == ETIME;
      return stayed;
    }
    return outcome(ExitCode::kMigrationOpen,
                   fmt::format("{}; and the abort could not be recorded: {}. Unfinished: run `ppmr "
                               "migrate --recover {}` here",
                               done.error().message, aborted.error().message, id_));
  }
  if (settings_.plan.is_rehearsal) return end_rehearsal();
  done = without_exceptions([this] { return hand_over(); });
  // With post-copy the target still reads the memory of the frozen tasks.
  Status running;
  const auto await = [this] { return without_exceptions([this] { return await_running(); }); };
  if (done && settings_.plan.may_run_before_memory()) running = await();
  await_memory_moved();
  end_source();
  join_dumps();
  if (settings_.plan.original_goes_on) resume_rdma_here();
  if (!done) {
    remove_checkpoints();
    return outcome(ExitCode::kMigrationOpen,
                   fmt::format("committed: the target owns the processes, but it cannot be "
                               "reached: {}. They are stopped on both nodes. Unfinished: run `ppmr "
                               "migrate --recover {}` here when the target is reachable again",
                               done.error().message, id_));
  }
  done = settings_.plan.may_run_before_memory() ? running : await();
  if (done) run_hook_after("after-run");
  settle_unit();
  remove_checkpoints();
  if (!done) {
    const bool lost = done.error().errno_value == EFAULT;
    return outcome(lost ? ExitCode::kPagesLost : ExitCode::kMigrationOpen, done.error().message);
  }
  return outcome(ExitCode::kSuccess, "");
}

Status Migration::prepare() {
  OwnershipRecord record;
  record.id = id_;
  record.role = kRole;
  record.endpoint = settings_.endpoint;
  record.mountpoint = settings_.mount.mountpoint;
  record.audit_file = settings_.endpoint.value("audit_file", "");
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  record.coordinator = identify_self();
  record.hold_limit_ms = settings_.hold_limit.count();
  record.plan = settings_.plan;
  record.criu_options = settings_.criu_options;
  record.unit = settings_.unit;
  for (const Tree& tree : trees_) {
    TreeRecord entry;
    entry.root = tree.plan.root.pid;
    entry.root_start_time = tree.plan.root.start_time;
    entry.name = tree.plan.name;
    entry.container = tree.plan.container;
    entry.expected_bytes = tree.plan.expected_bytes;
    entry.checkpoint = fmt::format("{}-{}-{}", plain(entry.name), entry.root, id_.substr(0, 8));
    record.trees.push_back(std::move(entry));
  }
  auto created = create_without_rivals(store_, std::move(record));
  if (!created) return failure(created.error());
  is_recorded_ = true;
  if (Status held = hold_unit_at_source(*created); !held) return held;
  OwnershipRecord shown = *created;
  shown.endpoint = json::object();  // paths of this node's keys, which the peer must not see
  shown.audit_file.clear();
  auto answer = agent_.ask(to_request(agent_request::Prepare{shown}), kFirstContact);
  if (!answer) return failure(answer.error());
  if (Status verdict = accepted(*answer); !verdict) {
    return failure(verdict.error().errno_value,
                   "the target refused the migration: " + verdict.error().message);
  }
  auto prepared = record_in(*answer);
  if (!prepared) return failure(prepared.error());
  if (prepared->unit.name != settings_.unit.name) {
    return failure(ENOTSUP,
                   "the version of ppmr at the target does not move units: update ppmr there");
  }
  if (prepared->plan.is_rehearsal != settings_.plan.is_rehearsal) {
    return failure(ENOTSUP,
                   "the version of ppmr at the target does not rehearse: update ppmr there");
  }
  target_ = std::move(*prepared);
  target_clock_ = ask_peer_clock(agent_, kFirstContact);
  const auto by = read_fields<agent_request::Answerer>(*answer);
  auto begun = driver_.take(source_event::Prepared{agent_.node_name(), target_.incarnation,
                                                   target_.node_id, by ? by->state_directory : ""});
  if (!begun) return failure(begun.error());
  // Writes the limits before an operator can know the ID: later, this could overwrite limits that
  // an operator has set.
  if (settings_.plan.is_live) {
    ChangedLimits limits{.max_downtime = settings_.live.max_downtime};
    const uint64_t rate = settings_.live.max_rate_bytes_per_s;
    if (rate > 0) limits.max_rate_bytes_per_s = rate;
    const uint64_t share = settings_.live.cpu_share_percent;
    if (share > 0) limits.cpu_share_percent = share;
    const uint64_t slow_down = settings_.live.slow_down_percent;
    if (slow_down > 0) limits.slow_down_percent = slow_down;
    const Status noted = write_changed_limits(store_.path_of(id_, kRole), limits);
    if (!noted) return noted;
  }
  audit_begin(begun->record);
  const TreeRecord& first = begun->record.trees.front();
  report_.event({{"event", "begun"},
                 {"target", agent_.node_name()},
                 {"first_pid", first.root},
                 {"first_name", first.name},
                 {"trees", begun->record.trees.size()}});
  return {};
}

void Migration::await_memory_moved() {
  MutexLock lock(mutex_);
  const auto all_moved = [this] {
    return std::all_of(trees_.begin(), trees_.end(),
                       [](const Tree& tree) { return tree.memory_has_moved; });
  };
  while (!changed_.wait_for(mutex_, kLookInterval, all_moved)) store_.note_contact(id_, kRole);
}

void Migration::run_hook_after(const char* name, const std::string& reason) {
  const Status ended = without_exceptions([&] {
    return run_hook(settings_.hooks, name,
                    {id_, roots(), settings_.endpoint.value("target", ""), reason});
  });
  if (!ended) report_.warning(ended.error().message);
}

void Migration::resume_rdma_here() {
  if (!asked_to_release_) return;
  if (Status resumed = resume_rdma(roots(), settings_.release_timeout); !resumed) {
    report_.warning("a process does not resume RDMA yet: " + resumed.error().message);
  }
}

std::vector<pid_t> Migration::roots() const {
  std::vector<pid_t> pids;
  for (const Tree& tree : trees_) pids.push_back(tree.plan.root.pid);
  return pids;
}

Result<OwnershipRecord> Migration::look_at_target(milliseconds wait, milliseconds patience) {
  const agent_request::Look look{agent_request::about(id_), target_.version, wait,
                                 pause_began_ns(store_.path_of(id_, kRole)) > 0};
  auto answer = agent_.insist(to_request(look), patience);
  if (!answer) return failure(answer.error());
  auto record = record_in(*answer);
  if (record) {
    if (target_clock_) use_own_clock(*record, *target_clock_);
    target_ = *record;
  }
  missing_bytes_.clear();
  for (const json& bytes : answer->value("missing_bytes", json::array())) {
    missing_bytes_.push_back(bytes.is_number_unsigned() ? bytes.get<uint64_t>() : 0);
  }
  return record;
}

// A target that aborts removes the sealed checkpoints. That makes dumps in progress fail. Then the
// cause is the target's error, not the error of the dump.
Error Migration::root_cause(const Error& own) {
  if (Status open = check_not_over(); !open) return open.error();
  auto target = look_at_target(milliseconds(0), kRootCausePatience);
  if (target && target->state() == MigrationState::kAborted && !target->error.empty()) {
    return {ECHILD, "the target aborted: " + target->error};
  }
  return own;
}

// Another program may abort the migration: `ppmr migrate --cancel`, a hook, the settler.
Status Migration::check_not_over() const {
  const auto record = store_.read(id_, kRole);
  if (record && record->state() == MigrationState::kAborted) {
    return failure(ECANCELED, record->error);
  }
  return {};
}

Status Migration::check_not_frozen() const {
  const auto record = store_.read(id_, kRole);
  if (!record) return failure(record.error());
  for (const TreeRecord& tree : record->trees) {
    if (tree.phase >= TreePhase::kHeld) continue;
    if (Status free = check_thawed(tree.root); !free) return free;
  }
  return {};
}

Status Migration::await_all_sealed() {
  MutexLock lock(mutex_);
  for (;;) {
    if (first_failure_) {
      const Error own = *first_failure_;
      lock.unlock();
      return failure(root_cause(own));
    }
    if (stop_) return failure(EINTR, "interrupted");
    size_t sealed = 0;
    for (const Tree& tree : trees_) sealed += tree.is_sealed ? 1 : 0;
    if (sealed == trees_.size()) break;
    if (changed_.wait_for(mutex_, kLookInterval) == std::cv_status::no_timeout) continue;
    lock.unlock();
    store_.note_contact(id_, kRole);
    report_.follow_pause();
    if (Status open = check_not_over(); !open) return open;
    if (Status free = check_not_frozen(); !free) return free;
    // A dump that uses the mount of a stopped daemon would block, with its tree frozen.
    const auto alive = ask(settings_.mount, to_request(request::Status{}), kReachPatience);
    if (!alive) return failure(EIO, alive.error().message);
    auto target = look_at_target(milliseconds(0), kReachPatience);
    if (!target) return failure(target.error());
    if (target->state() == MigrationState::kAborted) {
      return failure(ECHILD, "the target aborted: " + target->error);
    }
    lock.lock();
  }
  lock.unlock();
  report_.follow_pause();  // the end of a pause is reported before what comes after the rounds
  return {};
}

Status Migration::await_ready() {
  const auto deadline = Clock::now() + settings_.hold_limit;
  for (;;) {
    auto target = look_at_target(kLookSlice, kReachPatience);
    if (!target) return failure(target.error());
    if (Status open = check_not_over(); !open) return open;
    if (target->state() == MigrationState::kReady) return {};
    if (target->state() == MigrationState::kAborted) {
      return failure(ECHILD, "the target could not restore the processes: " + target->error);
    }
    if (stop_) return failure(EINTR, "interrupted");
    if (Clock::now() > deadline)
      return failure(ETIMEDOUT, "the target did not restore the processes within --timeout");
  }
}

// The audit line names the users whose processes leave this node, and the user who moves them.
void Migration::audit_begin(const OwnershipRecord& record) const {
  std::vector<ProcessIdentity> tasks;
  for (const pid_t root : roots()) {
    const auto of_root = tasks_of_tree(root);
    if (of_root) tasks.insert(tasks.end(), of_root->begin(), of_root->end());
  }
  audit_migration(record, "begun",
                  {{"address", settings_.endpoint.value("target", "")},
                   {"uids", users_of(tasks)},
                   {"by_uid", getuid()}});
}

// Records the outcome for `ppmr history` and `ppmr timeline`: only the target knows when the trees
// ran again. The outcome itself does not depend on this call.
void Migration::note_outcome() const {
  if (!is_recorded_) return;
  (void)store_.change(id_, kRole, [this](OwnershipRecord& latest) -> Status {
    for (size_t i = 0; i < trees_.size() && i < latest.trees.size(); ++i) {
      TreeRecord& tree = latest.trees[i];
      tree.bytes = trees_[i].sealed.bytes;
      tree.goes_on_ns = trees_[i].goes_on_ns;
      if (i >= target_.trees.size()) continue;
      const TreeRecord& there = target_.trees[i];
      tree.restore_began_ns = there.restore_began_ns;
      tree.restored_ns = there.held_ns;
      tree.running_ns = there.running_ns;
      tree.complete_ns = there.complete_ns;
      tree.lost = there.lost;
    }
    return {};
  });
}

MigrationOutcome Migration::outcome(ExitCode exit_code, const std::string& message) {
  MigrationOutcome result{exit_code, message, id_, {}};
  report_.end_pause();
  note_outcome();
  auto record = store_.read(id_, kRole);
  if (record) {
    audit_migration(*record, outcome_name(exit_code, settings_.plan.is_rehearsal),
                    message.empty() ? json::object() : json{{"reason", message}});
  }
  for (size_t i = 0; i < trees_.size(); ++i) {
    TreeOutcome tree{.plan = trees_[i].plan,
                     .source = {},
                     .target = {},
                     .sealed = trees_[i].sealed,
                     .move = settings_.plan,
                     .goes_on_ns = trees_[i].goes_on_ns,
                     .decided_ns = 0,
                     .promised_downtime = {},
                     .clock_uncertainty_ns = target_clock_ ? target_clock_->uncertainty_ns : -1};
    const bool was_rehearsed = settings_.plan.is_rehearsal && exit_code == ExitCode::kSuccess;
    if (was_rehearsed && record) tree.decided_ns = record->history().back().at_ns;
    if (!trees_[i].rounds.empty()) tree.promised_downtime = settings_.live.max_downtime;
    if (record && i < record->trees.size()) tree.source = record->trees[i];
    if (i < target_.trees.size()) tree.target = target_.trees[i];
    result.trees.push_back(std::move(tree));
  }
  return result;
}

}  // namespace ppmr
