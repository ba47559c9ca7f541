#include "jobs/agent/job_epochs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "jobs/agent/parallel.h"
#include "jobs/agent/requests.h"
#include "migration/protect/part_messages.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kProbePatience{3'000};
constexpr milliseconds kBeginPatience{60'000};
constexpr milliseconds kAwaitPatience{2'500};  // a host answers within half a second
constexpr milliseconds kForwardPatience{300'000};
constexpr milliseconds kRunPatience{180'000};
constexpr milliseconds kCapturePatience{25'000};
constexpr milliseconds kGoPatience{8'000};
constexpr milliseconds kLetGoPatience{30'000};
constexpr milliseconds kStopPatience{30'000};
constexpr milliseconds kJoinPatience{60'000};
constexpr milliseconds kForgetPatience{10'000};

// Sends `go` to every node, even if one does not answer.
Status let_go(const JobRecord& job, uint64_t number, bool keep, const AskHost& ask) {
  return ask_nodes(job, hosts_of(job), kGoPatience, ask, [&](size_t, const std::string& container) {
    return to_request(host_request::EpochGo{container, number, keep});
  });
}

// Waits until every node has done the step, or one of them has failed. A lost host is noticed soon,
// because it does not answer. Then this function does not wait for the other hosts, which may be
// waiting for the lost host as their partner.
Status await_step(const JobRecord& job, uint64_t number, const char* step, const AskHost& ask,
                  const OnAnswer& on_answer = {}) {
  std::atomic<bool> has_failed = false;
  const auto ask_until_done = [&](const std::string& host, const json& request, milliseconds) {
    for (;;) {
      auto answer = ask(host, request, kAwaitPatience);
      if (!answer) has_failed = true;
      if (!answer || !answer->value("pending", false) || has_failed) return answer;
    }
  };
  return ask_nodes(
      job, hosts_of(job), kAwaitPatience, ask_until_done,
      [&](size_t, const std::string& container) {
        return to_request(host_request::EpochAwait{container, number, step});
      },
      on_answer);
}

}  // namespace

std::vector<std::string> hosts_of(const JobRecord& job) {
  std::vector<std::string> hosts;
  for (const JobNodePlace& node : job.nodes) hosts.push_back(node.host);
  return hosts;
}

Status ask_nodes(const JobRecord& job, const std::vector<std::string>& hosts, milliseconds patience,
                 const AskHost& ask, const RequestOf& request_of, const OnAnswer& on_answer) {
  return for_each_in_parallel(job.nodes.size(), [&](size_t i) -> Status {
    const std::string container = job.container_of(static_cast<unsigned>(i));
    const auto answer = ask(hosts[i], request_of(i, container), patience);
    if (!answer) {
      return failure(answer.error().errno_value,
                     fmt::format("node {} on host {}: {}", job.nodes[i].name, hosts[i],
                                 answer.error().message));
    }
    if (on_answer) on_answer(i, *answer);
    return {};
  });
}

Result<KeptEpoch> run_epoch(const JobRecord& job, uint64_t number, EpochEnd end,
                            const AskHost& ask) {
  const std::vector<std::string> hosts = hosts_of(job);
  // The epoch of a job that is not protected, but suspended, needs no partners.
  std::vector<std::string> partners(hosts.size());
  if (job.protection.every_ms > 0) {
    auto chosen = choose_partners(job);
    if (!chosen) return failure(chosen.error());
    partners = std::move(*chosen);
  }
  // Finds a lost host before the epoch begins. Otherwise the epoch would wait for it, and delay the
  // rollback.
  const Status alive = ask_nodes(job, hosts, kProbePatience, ask, [](size_t, const std::string&) {
    return to_request(host_request::Alive{});
  });
  if (!alive) return failure(alive.error());
  const Status begun =
      ask_nodes(job, hosts, kBeginPatience, ask, [&](size_t i, const std::string& container) {
        return to_request(host_request::EpochBegin{.container = container,
                                                   .number = number,
                                                   .oldest = job.protection.agreed,
                                                   .partner = partners[i],
                                                   .hold = end == EpochEnd::kHeld});
      });
  if (!begun) return failure(begun.error());
  if (Status ready = await_step(job, number, part_message::kReady, ask); !ready) {
    return failure(ready.error());
  }
  const Status captured =
      ask_nodes(job, hosts, kCapturePatience, ask, [&](size_t, const std::string& container) {
        return to_request(host_request::EpochFreeze{{container, number}});
      });
  const int64_t frozen_ns = unix_time_ns();
  const Status gone = let_go(job, number, captured.has_value(), ask);
  if (!captured) return failure(captured.error());
  if (!gone) return failure(gone.error());
  std::vector<json> reports(job.nodes.size());
  const Status all = await_step(job, number, part_message::kKept, ask,
                                [&](size_t i, const json& report) { reports[i] = report; });
  if (!all) {
    if (end == EpochEnd::kHeld) let_nodes_go(job, number, ask);
    return failure(all.error());
  }
  KeptEpoch kept{.frozen_ns = frozen_ns};
  for (size_t i = 0; i < reports.size(); ++i) {
    kept.pause_ms = std::max(kept.pause_ms, reports[i].value("pause_ms", int64_t{0}));
    kept.bytes += reports[i].value("bytes", uint64_t{0});
    kept.sent_bytes += reports[i].value("sent_bytes", uint64_t{0});
    kept.kept_at.push_back({hosts[i]});
    // A held epoch was not sent to a partner.
    if (end == EpochEnd::kGoesOn) kept.kept_at.back().push_back(partners[i]);
  }
  return kept;
}

void let_nodes_go(const JobRecord& job, uint64_t number, const AskHost& ask) {
  const Status gone =
      ask_nodes(job, hosts_of(job), kLetGoPatience, ask, [&](size_t, const std::string& container) {
        return to_request(host_request::SuspendLetGo{{container, number}});
      });
  if (!gone) spdlog::warn("job {} goes on, but {}", job.id, gone.error().message);
}

Status roll_back(const JobRecord& job, const std::string& home,
                 const std::vector<NodeRollback>& rollbacks, const AskHost& ask) {
  const std::string hosts_text = job.hosts_text();
  std::vector<std::string> hosts;
  for (const NodeRollback& back : rollbacks) hosts.push_back(back.host);
  // First every process of the job ends. None may run on and receive data from a node that has been
  // rolled back already.
  const Status stopped =
      ask_nodes(job, hosts, kStopPatience, ask, [](size_t, const std::string& container) {
        return to_request(host_request::RollbackStop{{container}});
      });
  if (!stopped) return stopped;
  const Status ready = for_each_in_parallel(rollbacks.size(), [&](size_t i) -> Status {
    const NodeRollback& back = rollbacks[i];
    const auto index = static_cast<unsigned>(i);
    const auto named = [&](const Error& error) {
      return failure(error.errno_value, fmt::format("node {} on host {}: {}", job.nodes[i].name,
                                                    back.host, error.message));
    };
    if (back.host != job.nodes[i].host) {
      const json spec = to_json(job.spec_of(index, home, hosts_text));
      const auto joined = ask(
          back.host, to_request(host_request::Join{.spec = spec, .expected = true}), kJoinPatience);
      if (!joined && joined.error().errno_value != EEXIST) return named(joined.error());
    }
    if (back.from.empty()) return {};
    const auto sent =
        ask(back.from,
            to_request(host_request::EpochForward{.container = job.container_of(index),
                                                  .number = job.protection.agreed,
                                                  .to = back.host}),
            kForwardPatience);
    return sent ? Status{} : named(sent.error());
  });
  if (!ready) return ready;
  return ask_nodes(job, hosts, kRunPatience, ask, [&](size_t, const std::string& container) {
    return to_request(host_request::RollbackRun{{container, job.protection.agreed}});
  });
}

void forget_epochs(const JobRecord& job, const AskHost& ask) {
  (void)for_each_in_parallel(job.hosts.size(), [&](size_t i) -> Status {
    for (unsigned index = 0; index < job.nodes.size(); ++index) {
      const json end = to_request(host_request::EpochEnd{{job.container_of(index)}});
      const auto done = ask(job.hosts[i].name, end, kForgetPatience);
      if (done) continue;
      spdlog::warn("job {}: host {} may keep epochs: {}", job.id, job.hosts[i].name,
                   done.error().message);
      break;
    }
    return {};
  });
}

}  // namespace ppmr
