#include "migration/protect/protection.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "migration/protect/partner_place.h"
#include "migration/relay/unit_fate.h"
#include "migration/source/moved_unit.h"
#include "preflight/container_facts.h"
#include "processes/frozen_tasks.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/work_directory.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kWorkDirectory = "/run/ppmr/protect-";
constexpr milliseconds kContactInterval{2000};
constexpr milliseconds kLookInterval{200};
constexpr milliseconds kAfterFailure{5000};
constexpr milliseconds kKillPatience{10'000};

bool cannot_be_tracked(int error) { return error == EOPNOTSUPP || error == ENOSYS; }

// Returns whether another attempt would be refused, too. ENOENT and EBUSY are such refusals only
// before the first epoch: later, a unit at the partner may be active for a moment after an aborted
// takeover.
bool is_refusal(int error, bool has_sent) {
  return error == EACCES || error == EEXIST || error == EINVAL ||
         (!has_sent && (error == ENOENT || error == EBUSY));
}

// Reaps the page readers that have ended. A page reader ends when the daemon has read all pages;
// this process does not wait for that. Between epochs it has no other children.
void reap_page_readers() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

Clock::time_point next_epoch_at(Clock::time_point began, Clock::time_point ended, bool failed,
                                milliseconds every) {
  if (failed) return ended + std::min(every, kAfterFailure);
  return std::max(began + every, ended);
}

milliseconds best_interval(milliseconds pause, milliseconds mtbf) {
  const auto both_ms =
      static_cast<double>(std::max<int64_t>(pause.count(), 1)) * static_cast<double>(mtbf.count());
  const std::chrono::seconds best{std::llround(std::sqrt(2 * both_ms) / 1000)};
  return std::clamp<milliseconds>(best, kEpochIntervalMin, kEpochIntervalMax);
}

RunGoesOn judge_run(const KeptAtPartner& kept, const std::string& run, uint64_t newest,
                    uint64_t newest_end, uint64_t failed_end) {
  if (newest_end == 0 || kept.run != run) return RunGoesOn::kNot;
  if (kept.newest == newest && kept.memory_end == newest_end) return RunGoesOn::kFromNewest;
  const bool has_failed = kept.newest == newest + 1 && kept.memory_end == failed_end;
  return has_failed ? RunGoesOn::kWithEpoch : RunGoesOn::kNot;
}

// What all epochs of a run share.
struct Protection::Run {
  explicit Run(WorkDirectory directory) : id(random_migration_id()), work(std::move(directory)) {}

  const std::string id;
  WorkDirectory work;
  LiveMemory live;
  uint64_t kept_bytes = 0;  // the end of the newest epoch that is kept
  bool has_failed = false;  // true: the last epoch failed
};

Status Protection::make_place() {
  if (place_) return {};
  if (has_one_partner()) {
    place_ = std::make_unique<PartnerPlace>(PartnerPlace::Options{
        .name = settings_.name,
        .tree = settings_.tree,
        .find = settings_.targets.front().find,
        .on_epoch = [this](const EpochReport& report) { report_epoch(report, nullptr); }});
    return {};
  }
  auto made =
      FanOut::create({.name = settings_.name,
                      .tree = settings_.tree,
                      .targets = settings_.targets,
                      .policy = settings_.policy,
                      .keep = settings_.keep,
                      .retry_after = std::min(every_, kAfterFailure),
                      .seal_patience = settings_.seal_patience,
                      .directory = kCapturedDirectory,
                      .on_epoch = [this](const EpochReport& report,
                                         const json& partners) { report_epoch(report, partners); },
                      .on_event = [this](const json& event) { report_event(event); }});
  if (!made) return failure(made.error());
  place_ = std::move(*made);
  return {};
}

void Protection::report_event(json event) const {
  event["name"] = settings_.name;
  event["time_ns"] = realtime_ns();
  MutexLock lock(events_mutex_);
  if (settings_.on_event) settings_.on_event(event);
}

void Protection::warn(const std::string& sentence) const {
  report_event({{"event", "warning"}, {"sentence", sentence}});
}

tl::unexpected<Error> Protection::ends(Ending why, std::string message) {
  ending_ = why;
  return failure(ECANCELED, std::move(message));
}

Status Protection::check_tree() {
  if (stop_) return ends(Ending::kInterrupted, "interrupted");
  const ProcessIdentity root{settings_.tree.root, settings_.tree.root_start_time};
  if (is_alive(root)) return {};
  return ends(Ending::kTreeEnded,
              fmt::format("process {} ({}) has ended", root.pid, settings_.tree.program));
}

template <typename T>
Result<T> Protection::answered(Result<T> answer) {
  if (answer || answer.error().errno_value != EOWNERDEAD) return answer;
  return ends(Ending::kReplaced, answer.error().message);
}

RunOfEpochs Protection::describe(const Run& run) const { return {run.id, criu_options_, manager_}; }

Result<KeptAtPartner> Protection::open(const Run& run) {
  auto opened = answered(place_->open(describe(run)));
  if (!opened && !ending_ && is_refusal(opened.error().errno_value, has_sent_)) {
    return ends(Ending::kRefused, opened.error().message);
  }
  return opened;
}

Result<std::unique_ptr<Protection::Run>> Protection::begin_run() {
  if (Status made = make_place(); !made) return failure(made.error());
  // The directory has a fixed name, because messages name CRIU's log in it.
  auto work = WorkDirectory::create(kWorkDirectory + settings_.name);
  if (!work) return failure(work.error());
  auto run = std::make_unique<Run>(std::move(*work));
  const auto opened = open(*run);
  if (!opened) return failure(opened.error());
  number_ = opened->newest;
  return run;
}

Status Protection::go_on_with(std::unique_ptr<Run>& run) {
  const auto kept = open(*run);
  if (!kept) return failure(kept.error());
  switch (judge_run(*kept, run->id, number_, run->kept_bytes, run->live.sent_bytes())) {
    case RunGoesOn::kFromNewest:
      run->live.take_back(run->kept_bytes);
      break;
    case RunGoesOn::kWithEpoch:
      run->kept_bytes = run->live.sent_bytes();
      ++number_;
      break;
    case RunGoesOn::kNot:
      run.reset();
      return {};
  }
  run->has_failed = false;
  return {};
}

Status Protection::look_at_manager() {
  if (!manager_.unit.name.empty()) {
    auto unit = find_moved_unit(manager_.unit.name);
    if (!unit) return failure(unit.error());
    if (unit->main_pid != settings_.tree.root) {
      return failure(ESRCH, fmt::format("the main process of {} is {} now", manager_.unit.name,
                                        unit->main_pid));
    }
    manager_.unit = std::move(unit->record);
    criu_options_ = settings_.criu_options;
    criu_options_.insert(criu_options_.end(), unit->criu_options.begin(), unit->criu_options.end());
  }
  if (!manager_.container.name.empty()) {
    const auto facts = gather_container_facts(manager_.container.name);
    if (!facts) return failure(facts.error());
    if (facts->state.created != manager_.container.created || facts->state.status != "running") {
      return failure(ESRCH, fmt::format("the container {} is {}", manager_.container.name,
                                        facts->state.status));
    }
    if (!facts->exec_processes.empty()) {
      return failure(EBUSY, fmt::format("process {} was started in {} by runc exec, and would not "
                                        "be in the epoch",
                                        facts->exec_processes.front(), manager_.container.name));
    }
  }
  return {};
}

Status Protection::send_epoch(Run& run) {
  EpochDump dump(
      run.live, {.criu = settings_.criu,
                 .to = place_->destination(),
                 // Each attempt uses a new name: the target may still have a failed checkpoint.
                 .checkpoint = epoch_checkpoint(settings_.name, random_migration_id(), number_ + 1),
                 .work = run.work.path(),
                 .root = {settings_.tree.root, settings_.tree.root_start_time},
                 .container = manager_.container.name,
                 .limits = limits_,
                 .criu_options = criu_options_,
                 .seal_patience = settings_.seal_patience,
                 .go_on = [this] { return check_tree(); },
                 .on_warning = [this](const std::string& sentence) { warn(sentence); }});
  const auto began = Clock::now();
  auto sent = dump.send();
  if (!sent && !has_sent_ && cannot_be_tracked(sent.error().errno_value)) {
    return ends(Ending::kRefused,
                fmt::format("process {} ({}) cannot be protected: {}", settings_.tree.root,
                            settings_.tree.program, sent.error().message));
  }
  if (!sent) {
    const Status alive = check_tree();  // the better reason
    return failure(alive ? sent.error() : alive.error());
  }
  sent->epoch.number = number_ + 1;
  const SealedEpoch& epoch = sent->epoch;
  const uint64_t oldest = epoch.number + 1 - std::min<uint64_t>(settings_.keep, epoch.number);
  const Status kept = answered(place_->keep(describe(run), *sent, dump, oldest));
  if (!kept) return failure(kept.error());
  number_ = epoch.number;
  run.kept_bytes = run.live.sent_bytes();
  has_sent_ = true;
  limits_.fixed_part = sent->fixed_part;
  if (settings_.mtbf) {
    every_ = best_interval(milliseconds(epoch.pause_ms), *settings_.mtbf);
    limits_.max_time = every_;
  }
  place_->announce({epoch, began, every_});
  return {};
}

void Protection::report_epoch(const EpochReport& report, const json& partners) const {
  const SealedEpoch& epoch = report.epoch;
  json event = {
      {"event", "epoch"},
      {"number", epoch.number},
      {"bytes", epoch.bytes},
      {"sent_bytes", epoch.arrived_bytes},
      {"pause_ms", epoch.pause_ms},
      {"max_pause_ms", settings_.limits.max_downtime.count()},
      {"every_ms", report.every.count()},
      {"took_ms", std::chrono::duration_cast<milliseconds>(Clock::now() - report.began).count()}};
  if (!partners.is_null()) event["partners"] = partners;
  if (report.on_disk) {
    event["on_disk"] = {{"epoch", report.on_disk->number}, {"error", report.on_disk->error}};
  }
  report_event(std::move(event));
}

Status Protection::wait_until(Clock::time_point next, Run* run) {
  auto contact_at = Clock::now() + kContactInterval;
  while (Clock::now() < next) {
    if (Status alive = check_tree(); !alive) return alive;
    // With several partners there are no page readers, and other threads wait for their own
    // children.
    if (has_one_partner()) reap_page_readers();
    if (run != nullptr && Clock::now() >= contact_at) {
      contact_at = Clock::now() + kContactInterval;
      const Status asked = answered(place_->contact(run->id));
      if (ending_) return failure(asked.error());
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  return check_tree();
}

// Also keeps systemd from starting the unit again, and removes the container from runc's list.
ProtectionEnd Protection::end_own_copy(const std::string& why) {
  OwnershipRecord unit;  // names the drop-in
  unit.id = random_migration_id();
  unit.role = MigrationRole::kSource;
  unit.unit = manager_.unit;
  Status ended = hold_unit_at_source(unit);
  // Kills the copy even if systemd may start it again: only the copy at the partner may go on.
  if (Status killed = kill_own_copy(); ended) ended = killed;
  if (ended) ended = retire_unit_at_source(unit);
  if (!ended) warn(ended.error().message);
  report_event({{"event", "replaced"}, {"reason", why}});
  return {ExitCode::kReplaced, why + "; the copy here was ended"};
}

// Stops the tasks first, so that none can start another task before it is killed. Tries again while
// the node is short of descriptors or memory, even after an interrupt: the partner's copy runs, so
// no task may go on here.
Status Protection::kill_own_copy() const {
  const ProcessIdentity root{settings_.tree.root, settings_.tree.root_start_time};
  auto tasks = stop_trees({root});
  if (!tasks) {
    warn("the copy here cannot be ended yet, ppmr tries again: " + tasks.error().message);
    tasks = insist_on_tasks(stop_trees, {root});
  }
  tasks->kill();
  if (!tasks->await_end(kKillPatience)) warn("a process here was killed, but has not ended yet");
  if (manager_.container.name.empty()) return {};
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const auto state = runc->state(manager_.container.name);
  const bool is_same = state && state->created == manager_.container.created;
  return is_same ? runc->remove(manager_.container.name) : Status{};
}

ProtectionEnd Protection::end(const Error& error, Run* run) {
  ProtectionEnd how = finish(error, run);
  if (place_) place_->note_end();
  return how;
}

ProtectionEnd Protection::finish(const Error& error, Run* run) {
  switch (*ending_) {
    case Ending::kReplaced:
      return end_own_copy(error.message);
    case Ending::kTreeEnded:
      if (run != nullptr) {
        const Status closed = answered(place_->close(run->id));
        if (!closed && *ending_ != Ending::kReplaced) {
          return {ExitCode::kPeerFailed,
                  fmt::format("{}, but a partner keeps its epoch: {}; run ppmr takeover --discard "
                              "{} there",
                              error.message, closed.error().message, settings_.name)};
        }
      }
      return {ExitCode::kSuccess, error.message};
    case Ending::kInterrupted:
      return {ExitCode::kInterrupted,
              fmt::format("interrupted: the process runs on without protection; the partner keeps "
                          "epoch {}",
                          number_)};
    case Ending::kRefused:
      break;
  }
  return {ExitCode::kFailure, error.message};
}

ProtectionEnd Protection::run() {
  std::unique_ptr<Run> run;
  std::string told;  // the last failure
  for (;;) {
    const auto began = Clock::now();
    Status done = check_tree();
    if (done) done = look_at_manager();
    // If one of these checks fails, no epoch has begun, and no pages have to be sent again.
    const bool begins = done.has_value();
    if (done && run && run->has_failed) done = go_on_with(run);
    if (done && !run) {
      auto opened = begin_run();
      done = opened ? Status{} : failure(opened.error());
      if (opened) run = std::move(*opened);
    }
    if (done) done = send_epoch(*run);
    if (ending_) return end(done.error(), run.get());
    if (!done) {
      if (std::exchange(told, done.error().message) != done.error().message) {
        warn(fmt::format("no new epoch: {}; the process runs on, and ppmr tries again",
                         done.error().message));
      }
      if (begins && run) run->has_failed = true;
    } else {
      told.clear();
    }
    const auto next = next_epoch_at(began, Clock::now(), !done, every_);
    if (Status waited = wait_until(next, run.get()); !waited) {
      return end(waited.error(), run.get());
    }
  }
}

}  // namespace ppmr
