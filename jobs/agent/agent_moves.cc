// How the agent of a host moves its job nodes away.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "daemon/control/control_client.h"
#include "jobs/agent/job_agent.h"
#include "jobs/agent/parallel.h"
#include "jobs/node/waiting_connections.h"
#include "migration/records/ownership_record.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kHomePatience{20'000};
constexpr std::chrono::milliseconds kPreparePatience{60'000};
constexpr std::chrono::seconds kBetweenQuestions{2};
constexpr std::chrono::seconds kAcceptPatience{60};
constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr int kDelaysMax = 4;
// A host that lives answers within this time.
constexpr std::chrono::milliseconds kAlivePatience{2500};
// A move has no time limit of its own. TCP finds within seconds that the other host has died.
constexpr std::chrono::hours kEvacuatePatience{24 * 7};
// The value in a node's record while the home has not named the spare yet.
constexpr const char* kNotChosen = "?";

}  // namespace

json JobAgent::evacuate(uid_t uid, const std::string& to, const MoveLimits& limits) {
  std::vector<HostNode> movable;
  for (const HostNode& node : nodes_.list()) {
    if (uid == 0 || uid == node.spec.user.uid) movable.push_back(node);
  }
  if (!to.empty() && movable.size() > 1) {
    return refusal({EINVAL, fmt::format("host {} has {} job nodes, and --to names one spare: leave "
                                        "--to out",
                                        options_.host, movable.size())});
  }
  // Takes the host out of the pool first, so that no node comes to this host while its nodes leave.
  if (Status out = pool_.take_out(uid); !out) return refusal(out.error());
  std::vector<json> results(movable.size());
  (void)for_each_in_parallel(movable.size(), [&](size_t i) -> Status {
    results[i] = answer_safely([&] { return evacuate_node(movable[i], to, limits); });
    results[i]["job"] = movable[i].spec.job;
    results[i]["allocation"] = movable[i].spec.allocation;
    results[i]["node"] = movable[i].spec.name;
    results[i]["from"] = options_.host;
    return {};
  });
  const bool all = std::all_of(results.begin(), results.end(),
                               [](const json& move) { return move.value("ok", false); });
  return {{"ok", true}, {"evacuation", {{"ok", all}, {"host", options_.host}, {"moves", results}}}};
}

json JobAgent::evacuate_other(const std::string& host, const host_request::Evacuate& request) {
  if (!is_host_name(host)) return refusal({EINVAL, "'" + host + "' is not the name of a host"});
  // Finds out within seconds whether the host is dead. The request below would take minutes to
  // fail.
  auto alive = ask_peer(options_.peers, host, to_request(host_request::Alive{}), kAlivePatience);
  if (!alive && contact_of(alive.error()) != Contact::kAnswers) {
    return refusal({alive.error().errno_value,
                    explain_silence(host, alive.error(), options_.home.host_timeout)});
  }
  auto answer = ask_peer(options_.peers, host, to_request(request), kEvacuatePatience);
  if (!answer && contact_of(answer.error()) != Contact::kAnswers) {
    return refusal({answer.error().errno_value,
                    explain_silence(host, answer.error(), options_.home.host_timeout)});
  }
  return answer ? *answer : refusal(answer.error());
}

json JobAgent::cancel(uid_t uid) {
  json results = json::array();
  bool all = true;
  for (const HostNode& node : nodes_.list()) {
    if (node.moving_to.empty() || (uid != 0 && uid != node.spec.user.uid)) continue;
    json result = answer_of(cancel_move(options_.evacuation, node));
    result["job"] = node.spec.job;
    result["node"] = node.spec.name;
    result["from"] = options_.host;
    all = all && result.value("ok", false);
    results.push_back(std::move(result));
  }
  return {{"ok", true}, {"cancelled", {{"ok", all}, {"host", options_.host}, {"moves", results}}}};
}

json JobAgent::give_back(uid_t uid) {
  const bool was_out = pool_.report().is_out_for(uid);
  if (Status returned = pool_.give_back(uid); !returned) return refusal(returned.error());
  return {{"ok", true}, {"host", options_.host}, {"was_out", was_out}};
}

Status JobAgent::check_pool(uid_t user) const {
  if (!pool_.report().is_out_for(user)) return {};
  return failure(EACCES, fmt::format("it was evacuated and takes no job nodes: ppmr job return {} "
                                     "makes it a host for jobs again",
                                     options_.host));
}

Result<json> JobAgent::reserve(const HostNode& node, const std::string& to) {
  return ask_peer(
      options_.peers, node.spec.home,
      to_request(host_request::Reserve{
          .job = node.spec.job, .index = node.spec.index, .from = options_.host, .to = to}),
      kHomePatience);
}

// Waits before the move, because CRIU cannot dump a connection that waits to be accepted. The move
// would fail, and each failed attempt would freeze the node.
Status JobAgent::await_accepts(const std::string& container) {
  const auto deadline = Clock::now() + kAcceptPatience;
  for (bool first = true;; first = false) {
    const auto waiting = waiting_ports_of(container);
    if (!waiting || waiting->empty()) return {};  // after an error, the move reports the reason
    if (first) {
      spdlog::info("{} waits until its program accepts the connections to port {}", container,
                   fmt::join(*waiting, ", "));
    }
    if (Clock::now() > deadline) {
      return failure(EAGAIN,
                     fmt::format("connections to port {} have waited for {} s until the node's "
                                 "program accepts them, and cannot move before: MPI accepts them "
                                 "when a rank calls MPI; try again, or with a longer --wait",
                                 fmt::join(*waiting, ", "), kAcceptPatience.count()));
    }
    if (wait(kBetweenLooks)) return failure(EAGAIN, "the job agent of this host ends");
  }
}

Result<HostNode> JobAgent::prepare_spare(const HostNode& node, const std::string& to) {
  const std::string container = node.spec.container();
  std::optional<Error> last;  // why the last spare could not prepare for the node
  // The home never chooses a failed spare again. When no spare is left it refuses, which ends the
  // loop.
  for (;;) {
    // Records the move first: if the agent dies after this line, the next agent gives the spare
    // back.
    if (Status noted = nodes_.note_move(container, kNotChosen, ""); !noted) {
      return failure(noted.error());
    }
    const auto reserved = reserve(node, to);
    // The home may have reserved a spare: finish_moves() gives it back.
    if (!reserved) return failure(reserved.error());
    if (const auto refused = reserved->find("refusal"); refused != reserved->end()) {
      (void)nodes_.note_move(container, "", "");
      return failure(last ? *last : accepted(*refused).error());
    }
    const std::string spare = reserved->at("to");
    // Records the ID before the migration begins. If this agent dies, the next agent finds the
    // migration by its ID.
    if (Status noted = nodes_.note_move(container, spare, random_migration_id()); !noted) {
      return failure(noted.error());
    }
    auto moving = nodes_.find(container);
    if (!moving) return moving;
    auto prepared =
        ask_peer(options_.peers, spare,
                 to_request(host_request::Join{
                     .spec = to_json(node.spec), .expected = true, .migration = moving->migration}),
                 kPreparePatience);
    if (prepared) return moving;
    last = {prepared.error().errno_value,
            fmt::format("spare {}: {}", spare, prepared.error().message)};
    spdlog::warn("{}: {}", container, last->message);
    const auto concluded =
        conclude_move(*moving, {.result = MoveResult::kStayed, .error = last->message}, true);
    if (!concluded || !to.empty()) return failure(*last);
  }
}

Result<MoveReport> JobAgent::run_move(const HostNode& node, const MoveLimits& limits) {
  const std::string container = node.spec.container();
  spdlog::info("{} moves to {}", container, node.moving_to);
  epochs_.end(container);  // only one process can track the memory that the node writes
  MoveReport report =
      move_job_node(options_.evacuation, node, node.moving_to, limits, [this] { return wait({}); });
  while (report.result == MoveResult::kOpen) {
    if (wait(kBetweenQuestions)) {
      return failure(EAGAIN, "the agent ends: the move continues without it");
    }
    report = move_result(options_.evacuation, node);
  }
  return report;
}

json JobAgent::evacuate_node(const HostNode& node, const std::string& to,
                             const MoveLimits& limits) {
  const std::string container = node.spec.container();
  const auto claim = nodes_.claim(container);
  if (!claim) return refusal(claim.error());
  const auto unmoved = nodes_.find(container);
  if (!unmoved) return refusal(unmoved.error());
  if (unmoved->expected) {
    return refusal({EBUSY, "job node " + container + " is still arriving: try again"});
  }
  if (!unmoved->moving_to.empty()) {
    return refusal(
        {EBUSY, "an earlier move of job node " + container + " is not settled yet: try again"});
  }
  for (int attempt = 0;; ++attempt) {
    if (Status accepted = await_accepts(container); !accepted) return refusal(accepted.error());
    const auto moving = prepare_spare(node, to);
    if (!moving) return refusal(moving.error());
    const auto report = run_move(*moving, limits);
    if (!report) return refusal(report.error());
    const auto job_ended = conclude_move(*moving, *report, false);
    if (!job_ended) {
      spdlog::warn("{}: {}", container, job_ended.error().message);  // finish_moves() tries again
    } else if (*job_ended) {
      return refusal({ECANCELED, "the job has ended"});
    }
    if (report->result == MoveResult::kMoved) {
      json moved = {{"ok", true}, {"to", moving->moving_to}};
      if (report->downtime_s) moved["downtime_s"] = *report->downtime_s;
      spdlog::info("{} moved to {}{}", container, moving->moving_to,
                   report->downtime_s ? fmt::format(": {:.2f} s down", *report->downtime_s) : "");
      return moved;
    }
    // Tries again only if the move failed because a connection came after await_accepts().
    const auto waiting = waiting_ports_of(container);
    if (!waiting || waiting->empty() || attempt == kDelaysMax) {
      return refusal({ECANCELED, report->error});
    }
  }
}

Result<bool> JobAgent::tell_home(const HostNode& node, const MoveReport& report,
                                 bool spare_failed) {
  const host_request::Settle move{.job = node.spec.job,
                                  .index = node.spec.index,
                                  .from = options_.host,
                                  .moved = report.result == MoveResult::kMoved,
                                  .spare_failed = spare_failed,
                                  .downtime_s = report.downtime_s,
                                  .error = report.error};
  auto answer = ask_peer(options_.peers, node.spec.home, to_request(move), kHomePatience);
  if (!answer) return failure(answer.error());
  return answer->value("job_ended", false);
}

Result<bool> JobAgent::conclude_move(const HostNode& node, const MoveReport& report,
                                     bool spare_failed) {
  const std::string container = node.spec.container();
  const auto job_ended = tell_home(node, report, spare_failed);
  if (!job_ended) return failure(job_ended.error());
  const bool moved = report.result == MoveResult::kMoved;
  remove_source_mount(options_.evacuation, node);
  if (node.moving_to != kNotChosen) {
    const bool has_arrived = moved && !*job_ended;
    const json news = has_arrived ? to_request(host_request::Arrived{{container}})
                                  : to_request(host_request::Leave{.container = container});
    auto answer = ask_peer(options_.peers, node.moving_to, news, kPreparePatience);
    // A lost answer does no harm: the other host asks the home periodically.
    if (!answer) {
      spdlog::warn("{}: host {} does not know that it {}: {}", container, node.moving_to,
                   has_arrived ? "runs there" : "stays away", answer.error().message);
    }
  }
  const Status settled =
      moved || *job_ended ? nodes_.remove_claimed(container) : nodes_.note_move(container, "", "");
  if (!settled) return failure(settled.error());
  return job_ended;
}

}  // namespace ppmr
