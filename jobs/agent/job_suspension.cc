#include "jobs/agent/job_suspension.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "jobs/agent/parallel.h"
#include "jobs/agent/requests.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPollPatience{10'000};  // a host answers within a second
constexpr milliseconds kStopPatience{60'000};
constexpr milliseconds kJoinPatience{60'000};
constexpr milliseconds kRunPatience{180'000};
constexpr size_t kNodesMax = 1 << 16;
constexpr size_t kSuspensionDigits = 16;

RequestOf request_to_hold(uint64_t number) {
  return [number](size_t, const std::string& container) {
    return to_request(host_request::SuspendHold{{container, number}});
  };
}

// Sends `request` to all hosts again and again, until each host reports that it is done. A host
// that is done gets the request `then` in place of it, until all are done.
Status ask_until_done(const JobRecord& job, const RequestOf& request, const RequestOf& then,
                      const AskHost& ask) {
  std::vector<std::atomic<bool>> is_done(job.nodes.size());
  for (;;) {
    std::atomic<size_t> left = 0;
    const Status asked = ask_nodes(
        job, hosts_of(job), kPollPatience, ask,
        [&](size_t i, const std::string& container) {
          return is_done[i] ? then(i, container) : request(i, container);
        },
        [&](size_t i, const json& answer) {
          if (answer.value("pending", false)) {
            ++left;
          } else {
            is_done[i] = true;
          }
        });
    if (!asked || left == 0) return asked;
  }
}

}  // namespace

bool is_suspension_id(const std::string& text) {
  return text.size() == kSuspensionDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

json to_json(const SuspendedJob& job) {
  json nodes = json::array();
  for (const SuspendedNode& node : job.nodes) {
    nodes.push_back({{"name", node.name}, {"address", node.address}});
  }
  return {{"suspension", job.suspension}, {"job", job.job},     {"uid", job.uid},
          {"token", job.token},           {"epoch", job.epoch}, {"frozen_ns", job.frozen_ns},
          {"bytes", job.bytes},           {"nodes", nodes},     {"launcher", job.launcher}};
}

Result<SuspendedJob> parse_suspended_job(const json& packed) {
  try {
    SuspendedJob job{.suspension = packed.at("suspension"),
                     .job = packed.at("job"),
                     .uid = packed.at("uid"),
                     .token = packed.at("token"),
                     .epoch = packed.at("epoch"),
                     .frozen_ns = packed.at("frozen_ns"),
                     .bytes = packed.at("bytes"),
                     .nodes = {},
                     .launcher = packed.at("launcher")};
    for (const json& node : packed.at("nodes")) {
      job.nodes.push_back({.name = node.at("name"), .address = node.at("address")});
    }
    const bool has_nodes = !job.nodes.empty() && job.nodes.size() <= kNodesMax;
    if (!is_suspension_id(job.suspension) || !is_job_id(job.job) || !has_nodes || job.epoch == 0) {
      return failure(EPROTO,
                     "the file of the suspended job names no valid job, suspension, epoch "
                     "or nodes");
    }
    // The hosts check the names, the addresses and the token when they make the nodes.
    return job;
  } catch (const json::exception& error) {
    return failure(EPROTO, std::string("the file of the suspended job: ") + error.what());
  }
}

Result<JobRecord> plan_resumption(const SuspendedJob& suspended, JobRecord record,
                                  const std::vector<std::string>& hosts,
                                  const std::vector<std::string>& spares) {
  if (record.user.uid != suspended.uid) {
    return failure(EACCES, fmt::format("job {} belongs to user {}: only that user may resume it",
                                       suspended.job, suspended.uid));
  }
  if (hosts.size() != suspended.nodes.size()) {
    return failure(EINVAL, fmt::format("job {} has {} nodes, and needs as many hosts: it got {}",
                                       suspended.job, suspended.nodes.size(), hosts.size()));
  }
  record.id = suspended.job;
  record.token = suspended.token;
  for (size_t i = 0; i < hosts.size(); ++i) {
    record.hosts.push_back({.name = hosts[i]});
    record.nodes.push_back(
        {.name = suspended.nodes[i].name, .address = suspended.nodes[i].address, .host = hosts[i]});
  }
  for (const std::string& spare : spares) {
    record.hosts.push_back({.name = spare, .state = HostState::kSpare});
  }
  for (JobHost& host : record.hosts) host.since_ns = unix_time_ns();
  JobProtection& protection = record.protection;
  protection.agreed = suspended.epoch;
  protection.next = suspended.epoch + 1;
  protection.agreed_ns = suspended.frozen_ns;
  protection.bytes = suspended.bytes;
  for (const std::string& host : hosts) protection.kept_at.push_back({host});
  protection.rolling_back = "it goes on after a suspension";
  if (protection.every_ms > 0) {
    if (const auto partners = choose_partners(record); !partners) return failure(partners.error());
  }
  return record;
}

Status write_nodes(const JobRecord& job, uint64_t number, const SuspensionPlace& place,
                   const AskHost& ask) {
  return ask_until_done(
      job,
      [&](size_t, const std::string& container) {
        return to_request(host_request::SuspendWrite{.container = container,
                                                     .number = number,
                                                     .directory = place.directory,
                                                     .suspension = place.suspension,
                                                     .key_id = place.key_id});
      },
      request_to_hold(number), ask);
}

Status hold_nodes(const JobRecord& job, uint64_t number, const AskHost& ask) {
  return ask_nodes(job, hosts_of(job), kPollPatience, ask, request_to_hold(number));
}

Status stop_nodes(const JobRecord& job, const AskHost& ask) {
  return ask_nodes(job, hosts_of(job), kStopPatience, ask,
                   [](size_t, const std::string& container) {
                     return to_request(host_request::SuspendStop{{container}});
                   });
}

Status resume_nodes(const JobRecord& job, const std::string& home, const SuspensionPlace& place,
                    const AskHost& ask) {
  const std::string hosts_text = job.hosts_text();
  const Status joined =
      ask_nodes(job, hosts_of(job), kJoinPatience, ask, [&](size_t i, const std::string&) {
        const NodeSpec spec = job.spec_of(static_cast<unsigned>(i), home, hosts_text);
        return to_request(host_request::Join{.spec = to_json(spec), .expected = true});
      });
  if (!joined) return joined;
  const uint64_t number = job.protection.agreed;
  const Status all = ask_until_done(
      job,
      [&](size_t, const std::string& container) {
        return to_request(host_request::ResumeRead{.container = container,
                                                   .number = number,
                                                   .directory = place.directory,
                                                   .suspension = place.suspension});
      },
      [](size_t, const std::string&) { return to_request(host_request::Alive{}); }, ask);
  if (!all) return all;
  return ask_nodes(job, hosts_of(job), kRunPatience, ask,
                   [&](size_t, const std::string& container) {
                     return to_request(host_request::RollbackRun{{container, number}});
                   });
}

}  // namespace ppmr
