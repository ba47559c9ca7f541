// How a home manages the hosts of its jobs: it watches which of them answer, chooses spares, and
// records the results of moves.
#include <fmt/format.h>

#include <algorithm>

#include "jobs/agent/home_jobs.h"
#include "jobs/agent/parallel.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A host that lives answers at once, even if it is busy. Two tries to connect fit into the
// patience, as TCP repeats a lost packet after a second. A rollback asks once more before it asks
// the fence, so a host has been silent for three seconds then.
constexpr milliseconds kAlivePatience{1500};
constexpr milliseconds kQuiet{500};
// The home spends about a millisecond on each question.
constexpr size_t kQuestionsPerSecond = 64;
// The most moves that the history of a node keeps.
constexpr size_t kMovesMax = 16;

void step(JobHost* host, HostEvent event, const std::string& reason = "") {
  if (host == nullptr) return;
  if (Status done = take_step(*host, event, reason); !done) {
    spdlog::error("{}", done.error().message);
  }
}

}  // namespace

void HomeJobs::note_host(const std::string& host, const PoolReport& report) {
  MutexLock lock(mutex_);
  contacts_.note_answer(host, Clock::now());
  // Most hosts were never evacuated. Searching all jobs for each of them would take long.
  if (report.changed_ns == 0) return;
  for (auto& [id, job] : jobs_) {
    const JobHost* known = job.find_host(host);
    if (known == nullptr || job.ending) continue;
    JobHost now = *known;
    if (!note_report(now, report, job.user.uid)) continue;
    JobRecord changed = job;
    *changed.find_host(host) = std::move(now);
    if (Status saved = replace_locked(job, std::move(changed)); !saved) {
      spdlog::error("job {}: {}", id, saved.error().message);
    }
  }
}

void HomeJobs::ask_hosts(const std::vector<std::string>& hosts) {
  (void)for_each_in_parallel(hosts.size(), [&](size_t i) -> Status {
    const auto answer = ask_host(hosts[i], to_request(host_request::Alive{}), kAlivePatience);
    if (answer) note_host(hosts[i], parse_pool_report(answer->at("pool")));
    return {};
  });
}

Result<json> HomeJobs::ask_host(const std::string& host, const json& request,
                                milliseconds patience) {
  const auto asked_at = Clock::now();
  // A host answers Alive and EpochGo within milliseconds, so a silent host is probably dead. If it
  // lives and does not get EpochGo, its node runs on after kGoPatience of part_epochs.cc.
  const json& op = request.at("op");
  if (op == host_request::Alive::kName || op == host_request::EpochGo::kName) {
    patience = patience_with(contact_of_host(host).contact, patience);
  }
  auto answer = options_.ask(host, request, patience);
  MutexLock lock(mutex_);
  if (answer) {
    contacts_.note_answer(host, Clock::now());
    return answer;
  }
  const Contact before = contacts_.of(host).contact;
  contacts_.note_failure(host, answer.error(), asked_at);
  if (contacts_.of(host).contact != before) {
    spdlog::warn("host {}: {}", host, answer.error().message);
  }
  return answer;
}

void HomeJobs::watch_hosts() {
  std::vector<std::string> due;
  {
    MutexLock lock(mutex_);
    std::set<std::string> hosts;
    for (const auto& [id, job] : jobs_) {
      for (const JobHost& host : job.hosts) hosts.insert(host.name);
    }
    const milliseconds turn(hosts.size() * 1000 / kQuestionsPerSecond);
    due = contacts_.due(hosts, Clock::now(), std::max(kQuiet, turn), 2 * kQuestionsPerSecond);
  }
  ask_hosts(due);
  note_silent_hosts();
}

void HomeJobs::note_silent_hosts() {
  std::vector<std::pair<std::string, std::string>> lost;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, job] : jobs_) {
      if (job.ending || !job.protection.rolling_back.empty()) continue;
      if (std::string why = find_silent_host_locked(job); !why.empty()) {
        lost.emplace_back(id, std::move(why));
      }
    }
  }
  for (const auto& [id, why] : lost) on_loss(id, why, /*may_still_answer=*/true);
}

std::vector<JobRecord> HomeJobs::list(uid_t uid) const {
  MutexLock lock(mutex_);
  std::vector<JobRecord> found;
  for (const auto& [id, job] : jobs_) {
    if (!job.ending && (uid == 0 || uid == job.user.uid)) found.push_back(job);
  }
  return found;
}

std::vector<json> HomeJobs::views(uid_t uid) const {
  const std::vector<JobRecord> jobs = list(uid);
  MutexLock lock(mutex_);
  const auto contact = [this](const std::string& host)
                           PPMR_REQUIRES(mutex_) { return contacts_.of(host); };
  std::vector<json> found;
  for (const JobRecord& job : jobs) found.push_back(public_view(job, contact));
  return found;
}

std::string HomeJobs::why_no_spare(const JobRecord& job, const std::string& to) const {
  std::string hosts;
  for (const JobHost& host : job.hosts) {
    const bool has_node = host.state == HostState::kReady || host.state == HostState::kMoving;
    if (to.empty() ? has_node : host.name != to) continue;
    const HostContact contact = contacts_.of(host.name);
    const HostState state = shown_state(host.state, contact.contact);
    const std::string& reason = host.reason.empty() ? contact.reason : host.reason;
    hosts += fmt::format("{}{} is {}{}", hosts.empty() ? "" : "; ", host.name, to_string(state),
                         reason.empty() ? "" : " (" + reason + ")");
  }
  if (!to.empty()) {
    return fmt::format("{} is not a spare of job {}{}", to, job.id,
                       hosts.empty() ? ", nor any host of it" : ": " + hosts);
  }
  return fmt::format(
      "job {} has no spare host left{}: the node stays; ppmr job return HOST makes "
      "a host a spare again, and jobs start with more with --spares",
      job.id, hosts.empty() ? "" : ": " + hosts);
}

Result<std::string> HomeJobs::reserve(const std::string& id, unsigned index,
                                      const std::string& from, const std::string& to) {
  std::vector<std::string> idle;
  {
    MutexLock lock(mutex_);
    auto found = find_locked(id);
    if (!found) return failure(found.error());
    for (const JobHost& host : (*found)->hosts) {
      const bool has_node = host.state == HostState::kReady || host.state == HostState::kMoving;
      if (!has_node && (to.empty() || host.name == to)) idle.push_back(host.name);
    }
  }
  ask_hosts(idle);

  MutexLock lock(mutex_);
  if (Status over = await_epoch(id); !over) return failure(over.error());
  auto found = find_locked(id);
  if (!found) return failure(found.error());
  JobRecord job = **found;
  if (!job.protection.rolling_back.empty()) {
    return failure(EBUSY, fmt::format("job {} is being rolled back to epoch {} ({}): try again", id,
                                      job.protection.agreed, job.protection.rolling_back));
  }
  if (index >= job.nodes.size()) {
    return failure(ENOENT, fmt::format("job {} has no node number {}", id, index));
  }
  JobNodePlace& node = job.nodes[index];
  JobHost* source = job.find_host(from);
  if (source == nullptr || node.host != from) {
    return failure(
        ENOENT, "move node " + node.name + " from host " + from + ": it is on host " + node.host);
  }
  if (!node.moving_to.empty()) {
    return failure(EBUSY, "node " + node.name + " is moving to " + node.moving_to + " already");
  }
  JobHost* spare = nullptr;  // a spare that failed before is the last choice
  for (JobHost& host : job.hosts) {
    const HostState shown = shown_state(host.state, contacts_.of(host.name).contact);
    const bool fits = shown == HostState::kSpare && (to.empty() || host.name == to);
    if (fits && (spare == nullptr || host.failed_moves < spare->failed_moves)) spare = &host;
  }
  if (spare == nullptr) return failure(ENOSPC, why_no_spare(job, to));
  for (const auto& [host, event] :
       {std::pair(spare, HostEvent::kChosen), std::pair(source, HostEvent::kNodeLeaves)}) {
    if (Status done = take_step(*host, event); !done) return failure(done.error());
  }
  node.moving_to = spare->name;
  const std::string chosen = spare->name;
  if (Status saved = replace_locked(**found, std::move(job)); !saved) return failure(saved.error());
  return chosen;
}

Status HomeJobs::settle(const host_request::Settle& settlement) {
  MutexLock lock(mutex_);
  auto found = find_locked(settlement.job);
  if (!found) return failure(found.error());
  JobRecord job = **found;
  if (settlement.index >= job.nodes.size()) {
    return failure(ENOENT,
                   fmt::format("job {} has no node number {}", settlement.job, settlement.index));
  }
  JobNodePlace& node = job.nodes[settlement.index];
  // An earlier call has settled this move.
  if (node.host != settlement.from || node.moving_to.empty()) return {};
  JobHost* source = job.find_host(settlement.from);
  JobHost* spare = job.find_host(node.moving_to);
  node.moves.push_back({.from = settlement.from,
                        .to = node.moving_to,
                        .ended_ns = unix_time_ns(),
                        .downtime_s = settlement.moved ? settlement.downtime_s : std::nullopt,
                        .error = settlement.error.substr(0, kMoveErrorMaxBytes)});
  if (node.moves.size() > kMovesMax) node.moves.erase(node.moves.begin());
  if (settlement.moved) node.host = node.moving_to;
  node.moving_to.clear();
  if (settlement.moved) {
    step(source, HostEvent::kNodeLeft, "evacuated");
    step(spare, HostEvent::kNodeArrived);
  } else {
    step(source, HostEvent::kNodeStayed);
    if (spare != nullptr) ++spare->failed_moves;
    if (settlement.spare_failed) {
      step(spare, HostEvent::kFailed, settlement.error);
    } else {
      step(spare, HostEvent::kNodeStayedOff);
    }
  }
  return replace_locked(**found, std::move(job));
}

}  // namespace ppmr
