#include "jobs/agent/job_protection.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "jobs/agent/job_record.h"
#include "migration/protect/protection.h"

namespace ppmr {
namespace {

using nlohmann::json;

bool is_usable(const JobHost& host) {
  return host.state == HostState::kReady || host.state == HostState::kSpare;
}

bool has_node(const JobRecord& job, const std::string& host) {
  return std::any_of(job.nodes.begin(), job.nodes.end(),
                     [&](const JobNodePlace& node) { return node.host == host; });
}

}  // namespace

size_t count_hosts(const JobRecord& job) {
  std::set<std::string> hosts;
  for (const JobNodePlace& node : job.nodes) hosts.insert(node.host);
  return hosts.size();
}

std::chrono::milliseconds choose_interval(const JobRecord& job) {
  using std::chrono::milliseconds;
  const JobProtection& protection = job.protection;
  if (protection.mtbf_ms == 0) return milliseconds(protection.every_ms);
  const auto hosts = static_cast<int64_t>(std::max<size_t>(count_hosts(job), 1));
  const auto best =
      best_interval(milliseconds(protection.pause_ms), milliseconds(protection.mtbf_ms / hosts));
  return std::max(best, kJobEpochIntervalMin);
}

json to_json(const JobProtection& protection) {
  return {{"every_ms", protection.every_ms},
          {"mtbf_ms", protection.mtbf_ms},
          {"next", protection.next},
          {"agreed", protection.agreed},
          {"agreed_ns", protection.agreed_ns},
          {"pause_ms", protection.pause_ms},
          {"bytes", protection.bytes},
          {"sent_bytes", protection.sent_bytes},
          {"kept_at", protection.kept_at},
          {"rolling_back", protection.rolling_back},
          {"may_still_answer", protection.may_still_answer},
          {"rollbacks", protection.rollbacks},
          {"rollbacks_to_agreed", protection.rollbacks_to_agreed}};
}

JobProtection parse_job_protection(const json& packed) {
  return {.every_ms = packed.at("every_ms"),
          .mtbf_ms = packed.value("mtbf_ms", int64_t{0}),
          .next = packed.at("next"),
          .agreed = packed.at("agreed"),
          .agreed_ns = packed.at("agreed_ns"),
          .pause_ms = packed.at("pause_ms"),
          .bytes = packed.at("bytes"),
          .sent_bytes = packed.at("sent_bytes"),
          .kept_at = packed.at("kept_at").get<std::vector<std::vector<std::string>>>(),
          .rolling_back = packed.at("rolling_back"),
          .may_still_answer = packed.at("may_still_answer"),
          .rollbacks = packed.at("rollbacks"),
          .rollbacks_to_agreed = packed.at("rollbacks_to_agreed")};
}

bool can_roll_back(const JobProtection& protection) {
  return protection.agreed > 0 && protection.rollbacks_to_agreed < kRollbacksToOneEpochMax;
}

std::string unsettled_move(const JobRecord& job) {
  for (const JobNodePlace& node : job.nodes) {
    const JobHost* const host = job.find_host(node.host);
    if (host == nullptr || host->state != HostState::kMoving) continue;
    return fmt::format("the move of node {} from host {} to {} is not settled", node.name,
                       node.host, node.moving_to);
  }
  return "";
}

Result<std::vector<std::string>> choose_partners(const JobRecord& job) {
  std::vector<std::string> partners;
  for (const JobNodePlace& node : job.nodes) {
    const auto own = std::find_if(job.hosts.begin(), job.hosts.end(),
                                  [&](const JobHost& host) { return host.name == node.host; });
    const auto first = static_cast<size_t>(own - job.hosts.begin());
    std::string partner;
    for (size_t step = 1; step < job.hosts.size() && partner.empty(); ++step) {
      const JobHost& host = job.hosts[(first + step) % job.hosts.size()];
      if (is_usable(host) && host.name != node.host) partner = host.name;
    }
    if (partner.empty()) {
      return failure(ENOSPC, fmt::format("node {} on host {} has no partner: a protected job needs "
                                         "two hosts, or a spare, that answer",
                                         node.name, node.host));
    }
    partners.push_back(std::move(partner));
  }
  return partners;
}

Result<std::vector<NodeRollback>> plan_rollback(
    const JobRecord& job, const std::function<bool(const std::string& host)>& is_lost) {
  const JobProtection& protection = job.protection;
  std::vector<NodeRollback> rollbacks;
  std::set<std::string> taken;  // spares
  for (size_t i = 0; i < job.nodes.size(); ++i) {
    const JobNodePlace& node = job.nodes[i];
    std::vector<std::string> keepers;
    if (i < protection.kept_at.size()) keepers = protection.kept_at[i];
    std::erase_if(keepers, is_lost);
    if (keepers.empty()) {
      return failure(ENODATA, fmt::format("no host that is left keeps epoch {} of node {}",
                                          protection.agreed, node.name));
    }
    const auto keeps = [&](const std::string& host) {
      return std::find(keepers.begin(), keepers.end(), host) != keepers.end();
    };
    NodeRollback back{.host = node.host, .from = {}};
    if (is_lost(node.host)) {
      back.host.clear();
      // Prefers a spare that keeps the epoch already.
      for (const bool must_keep : {true, false}) {
        for (const JobHost& host : job.hosts) {
          const bool is_free =
              host.state == HostState::kSpare && !is_lost(host.name) && !taken.contains(host.name);
          if (back.host.empty() && is_free && (keeps(host.name) || !must_keep)) {
            back.host = host.name;
          }
        }
      }
      if (back.host.empty()) back.host = keepers.front();  // the node runs there beside another one
      taken.insert(back.host);
    }
    if (!keeps(back.host)) back.from = keepers.front();
    rollbacks.push_back(std::move(back));
  }
  return rollbacks;
}

void note_rollback(JobRecord& job, const std::vector<NodeRollback>& rollbacks,
                   const std::function<bool(const std::string& host)>& is_lost) {
  for (size_t i = 0; i < rollbacks.size(); ++i) {
    job.nodes[i].host = rollbacks[i].host;
    job.nodes[i].moving_to.clear();
    auto& kept_at = job.protection.kept_at[i];
    std::erase_if(kept_at, is_lost);
    if (!rollbacks[i].from.empty()) kept_at.push_back(rollbacks[i].host);
  }
  for (JobHost& host : job.hosts) {
    if (is_lost(host.name)) {
      if (is_usable(host)) (void)take_step(host, HostEvent::kDied, "lost");
    } else if (host.state == HostState::kSpare && has_node(job, host.name)) {
      (void)take_step(host, HostEvent::kTakesLostNode);
    }
  }
  job.protection.rolling_back.clear();
  job.protection.may_still_answer = false;
  ++job.protection.rollbacks;
  ++job.protection.rollbacks_to_agreed;
}

}  // namespace ppmr
