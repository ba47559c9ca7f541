#include "migration/protect/protection.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
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
constexpr milliseconds kContactPatience{1500};
constexpr milliseconds kLookInterval{200};
constexpr milliseconds kAfterFailure{5000};
constexpr milliseconds kKillPatience{10'000};

bool cannot_be_tracked(int error) { return error == EOPNOTSUPP || error == ENOSYS; }

// What the partner refuses before the first epoch, it refuses for ever. A unit there may be active
// for a moment after an aborted takeover.
bool is_refusal(int error, bool has_sent) {
  return error == EACCES || error == EEXIST || error == EINVAL ||
         (!has_sent && (error == ENOENT || error == EBUSY));
}

// A page reader ends when the daemon has read all, which no one waits for. Between epochs this
// process has no other children.
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

// What epochs share until one of them fails.
struct Protection::Run {
  Run(WorkDirectory directory, PartnerMount found, const ProtectionSettings& settings)
      : id(random_migration_id()),
        work(std::move(directory)),
        mount(found.mount),
        partner(found, settings.name, settings.tree) {}

  const std::string id;
  WorkDirectory work;
  const MountEntry mount;
  Partner partner;
  LiveMemory live;
};

void Protection::report_event(json event) const {
  event["name"] = settings_.name;
  event["time_ns"] = realtime_ns();
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

// An earlier `ppmr protect` may have been killed in the middle of an epoch.
void Protection::remove_leftovers(const MountEntry& mount) const {
  std::error_code ignored;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(mount.mountpoint, ignored)) {
    if (is_epoch_checkpoint(entry.path().filename(), settings_.name)) found.push_back(entry.path());
  }
  for (const auto& path : found) std::filesystem::remove_all(path, ignored);
}

Result<std::unique_ptr<Protection::Run>> Protection::begin_run() {
  auto partner = settings_.find_partner();
  if (!partner) return failure(partner.error());
  remove_leftovers(partner->mount);
  // A fixed place: messages name CRIU's log there.
  auto work = WorkDirectory::create(kWorkDirectory + settings_.name);
  if (!work) return failure(work.error());
  auto run = std::make_unique<Run>(std::move(*work), std::move(*partner), settings_);
  const auto opened = answered(run->partner.open({run->id, criu_options_, manager_}));
  if (!opened && !ending_ && is_refusal(opened.error().errno_value, has_sent_)) {
    return ends(Ending::kRefused, opened.error().message);
  }
  if (!opened) return failure(opened.error());
  number_ = opened->newest;
  return run;
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
  EpochDump dump(run.live, {.criu = settings_.criu,
                            .mount = run.mount,
                            .checkpoint = epoch_checkpoint(settings_.name, run.id, number_ + 1),
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
  const ArrivedParts parts{sent->checkpoint, sent->memory, sent->memory_offset};
  const Status kept =
      answered(run.partner.seal({run.id, criu_options_, manager_}, epoch, parts, oldest));
  if (!kept) return failure(kept.error());
  number_ = epoch.number;
  has_sent_ = true;
  limits_.fixed_part = sent->fixed_part;
  if (settings_.mtbf) {
    every_ = best_interval(milliseconds(epoch.pause_ms), *settings_.mtbf);
    limits_.max_time = every_;
  }
  // For `ppmr status` and the metrics.
  (void)ask(run.mount,
            to_request(request::NoteEpoch{.process = settings_.name,
                                          .pid = settings_.tree.root,
                                          .program = settings_.tree.program,
                                          .epoch = static_cast<int64_t>(epoch.number),
                                          .frozen_ns = epoch.frozen_ns,
                                          .pause_ms = epoch.pause_ms,
                                          .bytes = static_cast<int64_t>(epoch.bytes),
                                          .sent_bytes = static_cast<int64_t>(epoch.arrived_bytes),
                                          .every_ms = every_.count()}));
  report_event(
      {{"event", "epoch"},
       {"number", epoch.number},
       {"bytes", epoch.bytes},
       {"sent_bytes", epoch.arrived_bytes},
       {"pause_ms", epoch.pause_ms},
       {"max_pause_ms", settings_.limits.max_downtime.count()},
       {"every_ms", every_.count()},
       {"took_ms", std::chrono::duration_cast<milliseconds>(Clock::now() - began).count()}});
  return {};
}

Status Protection::wait_until(Clock::time_point next, Run* run) {
  auto contact_at = Clock::now() + kContactInterval;
  while (Clock::now() < next) {
    if (Status alive = check_tree(); !alive) return alive;
    reap_page_readers();
    if (run != nullptr && Clock::now() >= contact_at) {
      contact_at = Clock::now() + kContactInterval;
      const Status asked = answered(run->partner.contact(run->id, kContactPatience));
      if (ending_) return failure(asked.error());
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  return check_tree();
}

// systemd must not start the unit again, and runc must not list the container.
ProtectionEnd Protection::end_own_copy(const std::string& why) {
  OwnershipRecord unit;  // names the drop-in
  unit.id = random_migration_id();
  unit.role = MigrationRole::kSource;
  unit.unit = manager_.unit;
  Status ended = hold_unit_at_source(unit);
  // Also if systemd may start it again: the copy at the partner is the one that goes on.
  if (Status killed = kill_own_copy(); ended) ended = killed;
  if (ended) ended = retire_unit_at_source(unit);
  if (!ended) warn(ended.error().message);
  report_event({{"event", "replaced"}, {"reason", why}});
  return {ExitCode::kReplaced, why + "; the copy here was ended"};
}

// The tasks are stopped first, so that none can start another one while they are killed.
Status Protection::kill_own_copy() const {
  const ProcessIdentity root{settings_.tree.root, settings_.tree.root_start_time};
  if (const auto tasks = stop_trees({root})) {
    tasks->kill();
    if (!tasks->await_end(kKillPatience)) warn("a process here has not ended yet: it was killed");
  }
  if (manager_.container.name.empty()) return {};
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const auto state = runc->state(manager_.container.name);
  const bool is_same = state && state->created == manager_.container.created;
  return is_same ? runc->remove(manager_.container.name) : Status{};
}

ProtectionEnd Protection::end(const Error& error, Run* run) {
  if (run != nullptr) {
    (void)ask(run->mount, to_request(request::NoteProtectionEnd{settings_.name}));
  }
  switch (*ending_) {
    case Ending::kReplaced:
      return end_own_copy(error.message);
    case Ending::kTreeEnded:
      if (run != nullptr) {
        const Status closed = answered(run->partner.close(run->id));
        if (!closed && *ending_ != Ending::kReplaced) {
          return {
              ExitCode::kPeerFailed,
              fmt::format("{}, but the partner keeps its epoch: {}; run ppmr takeover --discard "
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
    // Nothing was sent that would have to be sent again.
    const bool begins = done.has_value();
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
      if (begins) run.reset();
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
