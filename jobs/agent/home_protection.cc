// How the home protects its jobs: it begins epochs when they are due, and rolls a job back after
// the loss of a node. job_epochs.h has the steps between hosts, job_protection.h the decisions.
#include <fmt/format.h>

#include <algorithm>

#include "base/without_exceptions.h"
#include "jobs/agent/home_jobs.h"
#include "jobs/agent/parallel.h"
#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kProbePatience{3'000};
constexpr milliseconds kFencePatience{120'000};
// This is short, because a launcher relays no signals while it waits. It asks again after a
// failure.
constexpr milliseconds kConnectPatience{5'000};
constexpr milliseconds kCapturePatience{30'000};
constexpr milliseconds kStopPatience{30'000};

// Adds to `needed` the hosts that keep the epoch of a node, if none of them answers. The epoch is
// lost only if they are certainly dead.
void add_last_keepers(const JobRecord& job, const std::set<std::string>& silent,
                      std::set<std::string>& needed) {
  for (const std::vector<std::string>& keepers : job.protection.kept_at) {
    const bool one_answers =
        std::any_of(keepers.begin(), keepers.end(),
                    [&](const std::string& host) { return !silent.contains(host); });
    if (!one_answers) needed.insert(keepers.begin(), keepers.end());
  }
}

}  // namespace

Result<HomeJobs::NewConnection> HomeJobs::reconnect(const std::string& id, uid_t uid) const {
  std::string port, address;
  NewConnection made;
  {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second.ending) return failure(absence_locked(id));
    const JobRecord& job = found->second;
    if (uid != 0 && uid != job.user.uid) {
      return failure(EPERM, "job " + id + " belongs to another user");
    }
    if (!job.protection.rolling_back.empty()) {
      return failure(EAGAIN, "job " + id + " is being rolled back to an epoch: try again");
    }
    port = job.port_name();
    address = job.nodes.at(0).address;
    made.rollbacks = job.protection.rollbacks;
  }
  auto connection = connect_through_port(port, address, kConnectPatience);
  if (!connection) return failure(connection.error());
  made.connection = std::move(*connection);
  return made;
}

HostContact HomeJobs::contact_of_host(const std::string& host) const {
  MutexLock lock(mutex_);
  return contacts_.of(host);
}

std::string HomeJobs::find_silent_host_locked(const JobRecord& job) const {
  if (job.protection.every_ms == 0 || !can_roll_back(job.protection)) return "";
  for (const JobNodePlace& node : job.nodes) {
    const HostContact contact = contacts_.of(node.host);
    // A host whose name has no address cannot be asked. Only a fence can say whether it is dead. If
    // only the name service fails, the host lives, and a fence may switch it off. So the home waits
    // longer.
    const bool is_silent = contact.contact == Contact::kSilent;
    const bool has_no_address = contact.contact == Contact::kUnknown && !options_.fence.empty();
    if (!is_silent && !has_no_address) continue;
    const auto patience = is_silent ? options_.dead_after : options_.host_timeout;
    if (Clock::now() - contact.since < patience) continue;
    return fmt::format("host {} does not answer: {}", node.host, contact.reason);
  }
  return "";
}

Status HomeJobs::await_epoch(const std::string& id) {
  captured_.wait_for(mutex_, kCapturePatience,
                     [&]() PPMR_REQUIRES(mutex_) { return !capturing_.contains(id); });
  if (!capturing_.contains(id)) return {};
  return failure(EBUSY, "an epoch of job " + id + " is under way: try again");
}

void HomeJobs::on_loss(const std::string& id, const std::string& why, bool may_still_answer) {
  {
    MutexLock lock(mutex_);
    auto found = find_locked(id);
    if (!found) return;
    JobRecord job = **found;
    if (!job.protection.rolling_back.empty()) return;
    if (job.protection.every_ms > 0 && can_roll_back(job.protection)) {
      job.protection.rolling_back = why;
      job.protection.may_still_answer = may_still_answer;
      if (Status saved = replace_locked(**found, job); saved) {
        begin_work_locked(job);
        return;
      }
    }
  }
  (void)end(id, 0, {why});
}

void HomeJobs::forget_loss(const std::string& id) {
  MutexLock lock(mutex_);
  auto found = find_locked(id);
  if (!found) return;
  JobRecord job = **found;
  job.protection.rolling_back.clear();
  job.protection.may_still_answer = false;
  stuck_since_.erase(id);
  if (replace_locked(**found, std::move(job))) {
    spdlog::info("job {} goes on: its hosts answer again", id);
  }
}

bool HomeJobs::is_epoch_due(const JobRecord& job) const {
  if (job.protection.every_ms == 0) return false;
  const auto began = epoch_began_.find(job.id);
  return began == epoch_began_.end() ||
         Clock::now() - began->second >= milliseconds(job.protection.every_ms);
}

JobRecord HomeJobs::without_absent_spares_locked(JobRecord job) const {
  for (JobHost& host : job.hosts) {
    if (host.state != HostState::kSpare) continue;
    host.state = shown_state(host.state, contacts_.of(host.name).contact);
  }
  return job;
}

Result<JobRecord> HomeJobs::begin_epoch(const std::string& id) {
  MutexLock lock(mutex_);
  auto found = find_locked(id);
  if (!found) return failure(found.error());
  JobRecord job = **found;
  for (const JobNodePlace& node : job.nodes) {
    if (!node.moving_to.empty()) return failure(EBUSY, "node " + node.name + " is moving");
  }
  if (!job.protection.rolling_back.empty()) return failure(EBUSY, "the job is being rolled back");
  if (!is_epoch_due(job)) return failure(EAGAIN, "the next epoch is not due");
  epoch_began_[id] = Clock::now();
  ++job.protection.next;  // saved before the epoch begins, so that no number is used twice
  if (Status saved = replace_locked(**found, std::move(job)); !saved) return failure(saved.error());
  capturing_.insert(id);
  return without_absent_spares_locked(**found);
}

void HomeJobs::end_epoch(const std::string& id, uint64_t number, const Result<KeptEpoch>& kept) {
  MutexLock lock(mutex_);
  capturing_.erase(id);
  captured_.notify_all();
  auto found = find_locked(id);
  if (!found) return;
  if (!kept) {
    spdlog::warn("job {}: no epoch {}: {}", id, number, kept.error().message);
    return;
  }
  JobRecord job = **found;
  // If a node was lost meanwhile, its job is rolled back to this epoch, which all nodes have kept.
  JobProtection& protection = job.protection;
  protection.agreed = number;
  protection.agreed_ns = kept->frozen_ns;
  protection.pause_ms = kept->pause_ms;
  protection.bytes = kept->bytes;
  protection.sent_bytes = kept->sent_bytes;
  protection.kept_at = kept->kept_at;
  protection.rollbacks_to_agreed = 0;
  protection.every_ms = choose_interval(job).count();
  if (Status saved = replace_locked(**found, std::move(job)); !saved) {
    spdlog::error("job {}: {}", id, saved.error().message);
  }
}

void HomeJobs::protect_job(const std::string& id) {
  const auto job = begin_epoch(id);
  if (!job) return;
  const uint64_t number = job->protection.next - 1;
  end_epoch(id, number, run_epoch(*job, number, EpochEnd::kGoesOn, ask_unless_lost(*job)));
}

// After the failure, the caller lets the nodes run on that stand still.
AskHost HomeJobs::ask_unless_ending() {
  return
      [this](const std::string& host, const json& request, milliseconds patience) -> Result<json> {
        const json& op = request.at("op");
        const bool is_asked_again = op == host_request::EpochAwait::kName ||
                                    op == host_request::SuspendWrite::kName ||
                                    op == host_request::ResumeRead::kName;
        if (stops_ && is_asked_again) return failure(ECANCELED, "the job agent ends");
        return ask_host(host, request, patience);
      };
}

// A host may have kept its part of the epoch before it died. Then only the node whose partner it is
// still waits for it, for as long as a seal may take.
AskHost HomeJobs::ask_unless_lost(const JobRecord& job) {
  return [this, job, ask = ask_unless_ending()](const std::string& host, const json& request,
                                                milliseconds patience) -> Result<json> {
    if (request.at("op") == host_request::EpochAwait::kName) {
      if (Status all_answer = check_epoch(job); !all_answer) return failure(all_answer.error());
    }
    return ask(host, request, patience);
  };
}

Status HomeJobs::check_epoch(const JobRecord& job) const {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(job.id);
  if (found == jobs_.end()) return failure(absence_locked(job.id));
  const std::string& loss = found->second.protection.rolling_back;
  if (!loss.empty()) return failure(ECANCELED, loss);
  for (const JobHost& host : job.hosts) {
    const HostContact contact = contacts_.of(host.name);
    if (host.state != HostState::kSpare || !is_surely_silent(contact, Clock::now())) continue;
    return failure(ECANCELED,
                   fmt::format("host {} does not answer: {}", host.name, contact.reason));
  }
  return {};
}

Status HomeJobs::confirm_dead(const std::string& host, const Error& error) const {
  const bool has_no_address = contact_of(error) == Contact::kUnknown;
  const HostContact known = contact_of_host(host);
  // A host without an address may still report to this host, and is then in contact.
  const bool is_early =
      known.contact != Contact::kUnknown || Clock::now() - known.since < options_.host_timeout;
  if (has_no_address && is_early) {  // see find_silent_host_locked()
    return failure(error.errno_value,
                   fmt::format("host {} cannot be asked: {}", host, error.message));
  }
  const int not_yet = has_no_address ? error.errno_value : EAGAIN;
  if (options_.fence.empty()) {
    return failure(not_yet, fmt::format("host {} does not answer ({}), and ppmr job agent has no "
                                        "--fence that could confirm that the host is dead",
                                        host, error.message));
  }
  const auto fenced = run_command({options_.fence, host}, kFencePatience);
  if (fenced && fenced->succeeded) return {};
  return failure(not_yet, fmt::format("host {} does not answer ({}), and the fence {} {} does not "
                                      "confirm that the host is dead: {}",
                                      host, error.message, options_.fence, host,
                                      fenced ? fenced->ending : fenced.error().message));
}

Result<HomeJobs::MissingHosts> HomeJobs::find_missing_hosts(const JobRecord& job) {
  std::set<std::string> needed, keepers;
  for (const JobNodePlace& node : job.nodes) {
    needed.insert(node.host);
    // An earlier try of the rollback may have started the node at `moving_to`.
    if (!node.moving_to.empty()) needed.insert(node.moving_to);
  }
  for (const auto& of_node : job.protection.kept_at) {
    keepers.insert(of_node.begin(), of_node.end());
  }
  std::vector<Status> answers(job.hosts.size());
  (void)for_each_in_parallel(job.hosts.size(), [&](size_t i) -> Status {
    const JobHost& host = job.hosts[i];
    const bool may_be_used = host.state != HostState::kInactive || needed.contains(host.name) ||
                             keepers.contains(host.name);
    if (!may_be_used) return {};
    const HostContact known = contact_of_host(host.name);
    if (is_surely_silent(known, Clock::now())) {
      answers[i] = failure(ETIMEDOUT, known.reason);
      return {};
    }
    const auto answer = ask_host(host.name, to_request(host_request::Alive{}), kProbePatience);
    if (!answer) answers[i] = failure(answer.error());
    return {};
  });
  std::set<std::string> silent;
  for (size_t i = 0; i < job.hosts.size(); ++i) {
    if (!answers[i]) silent.insert(job.hosts[i].name);
  }
  const bool all_nodes_answer =
      std::none_of(job.nodes.begin(), job.nodes.end(),
                   [&](const JobNodePlace& node) { return silent.contains(node.host); });
  // A job that goes on without a rollback needs neither an epoch nor a spare.
  if (all_nodes_answer && job.protection.may_still_answer) return MissingHosts();
  add_last_keepers(job, silent, needed);
  MissingHosts missing;
  for (size_t i = 0; i < job.hosts.size(); ++i) {
    const std::string& name = job.hosts[i].name;
    if (answers[i]) continue;
    if (!needed.contains(name)) {
      missing.away.insert(name);
      continue;
    }
    const Error& error = answers[i].error();
    const Contact contact = contact_of(error);
    if (contact != Contact::kSilent && contact != Contact::kUnknown) {
      return failure(EAGAIN, fmt::format("host {}: {}", name, error.message));
    }
    if (Status confirmed = confirm_dead(name, error); !confirmed) {
      return failure(confirmed.error());
    }
    missing.dead.insert(name);
  }
  return missing;
}

// Notes where each node will run. The agent of each host asks the home which nodes belong to the
// host, and removes all others. It must not remove a node that is about to arrive.
Status HomeJobs::note_plan(const std::string& id, const std::vector<NodeRollback>& rollbacks) {
  MutexLock lock(mutex_);
  auto found = find_locked(id);
  if (!found) return failure(found.error());
  JobRecord job = **found;
  for (size_t i = 0; i < rollbacks.size(); ++i) {
    JobNodePlace& node = job.nodes[i];
    node.moving_to = rollbacks[i].host != node.host ? rollbacks[i].host : "";
  }
  job.protection.may_still_answer = false;
  return replace_locked(**found, std::move(job));
}

// Stops each node at the host where an earlier try may have started it, if this try uses another
// host.
Status HomeJobs::stop_earlier_try(const JobRecord& job, const std::vector<NodeRollback>& rollbacks,
                                  const std::set<std::string>& dead) {
  for (size_t i = 0; i < rollbacks.size(); ++i) {
    const std::string& host = job.nodes[i].moving_to;
    if (host.empty() || host == rollbacks[i].host || dead.contains(host)) continue;
    const std::string container = job.container_of(static_cast<unsigned>(i));
    const auto stopped =
        ask_host(host, to_request(host_request::RollbackStop{{container}}), kStopPatience);
    if (!stopped) return failure(stopped.error());
  }
  return {};
}

Status HomeJobs::try_rollback(const JobRecord& job) {
  const auto began = Clock::now();
  const auto is_suspended = finish_suspension(job);
  if (!is_suspended) return failure(is_suspended.error());
  if (*is_suspended) return {};
  if (const std::string move = unsettled_move(job); !move.empty()) return failure(EAGAIN, move);
  const auto missing = find_missing_hosts(job);
  if (!missing) return failure(missing.error());
  const auto is_dead = [&](const std::string& host) { return missing->dead.contains(host); };
  // A dead spare is no reason to roll back nodes that run.
  const bool has_lost_node =
      std::any_of(job.nodes.begin(), job.nodes.end(),
                  [&](const JobNodePlace& node) { return is_dead(node.host); });
  if (!has_lost_node && job.protection.may_still_answer) {
    forget_loss(job.id);
    return {};
  }
  const auto rollbacks = plan_rollback(
      job, [&](const std::string& host) { return is_dead(host) || missing->away.contains(host); });
  if (!rollbacks) return failure(rollbacks.error());
  if (Status stopped = stop_earlier_try(job, *rollbacks, missing->dead); !stopped) return stopped;
  if (Status noted = note_plan(job.id, *rollbacks); !noted) return noted;
  if (Status back = roll_back(job, options_.host, *rollbacks, options_.ask); !back) return back;
  MutexLock lock(mutex_);
  auto found = find_locked(job.id);
  if (!found) return {};
  JobRecord changed = **found;
  note_rollback(changed, *rollbacks, is_dead);
  changed.suspending_to.clear();
  changed.suspension.clear();
  for (unsigned i = 0; i < changed.nodes.size(); ++i) {
    asked_[changed.container_of(i)] = Clock::now();
  }
  epoch_began_[job.id] = Clock::now();
  stuck_since_.erase(job.id);
  spdlog::info("job {} goes on from epoch {} after {} ms: {}", job.id, job.protection.agreed,
               std::chrono::duration_cast<milliseconds>(Clock::now() - began).count(),
               job.protection.rolling_back);
  return replace_locked(**found, std::move(changed));
}

void HomeJobs::roll_back_job(const JobRecord& job) {
  const Status back = try_rollback(job);
  if (back) return;
  spdlog::warn("job {} cannot be rolled back yet: {}", job.id, back.error().message);
  bool is_over = back.error().errno_value == ENODATA;
  {
    MutexLock lock(mutex_);
    // The time does not count while this host does not find an address: the other host may live.
    if (contact_of(back.error()) == Contact::kUnknown) {
      stuck_since_.erase(job.id);
      return;
    }
    const auto since = stuck_since_.emplace(job.id, Clock::now()).first->second;
    is_over = is_over || Clock::now() - since > options_.host_timeout;
  }
  if (!is_over) return;
  (void)end(
      job.id, 0,
      {fmt::format("{}; it cannot be rolled back to epoch {}: {}", job.protection.rolling_back,
                   job.protection.agreed, back.error().message)});
}

std::optional<JobRecord> HomeJobs::find_to_roll_back(const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = find_locked(id);
  if (stops_ || !found || capturing_.contains(id)) return {};
  if ((*found)->protection.rolling_back.empty()) return {};
  return **found;
}

void HomeJobs::begin_work_locked(const JobRecord& job) {
  if (stops_ || job.ending || capturing_.contains(job.id)) return;
  const auto work = [this, job] {
    const Status done = without_exceptions([&]() -> Status {
      if (job.protection.rolling_back.empty()) protect_job(job.id);
      // The loss of a node may have ended the epoch.
      if (const auto lost = find_to_roll_back(job.id)) roll_back_job(*lost);
      return {};
    });
    if (!done) spdlog::error("job {}: {}", job.id, done.error().message);
  };
  const Status begun = without_exceptions([&]() -> Status {
    workers_.begin(job.id, work);
    return {};
  });
  if (!begun) spdlog::error("job {}: {}", job.id, begun.error().message);
}

void HomeJobs::protect() {
  MutexLock lock(mutex_);
  for (const auto& [id, job] : jobs_) {
    if (!job.protection.rolling_back.empty() || is_epoch_due(job)) begin_work_locked(job);
  }
}

}  // namespace ppmr
