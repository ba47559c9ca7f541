// What the home of a protected job knows about its epochs, and what it decides from that. Pure.
//
//   epoch N   every node is captured while all stand still; each is kept on its own host and at a
//             partner, the next host of the job
//   agreed    all of them are kept: the job can be rolled back to N. Until the next one is agreed,
//   no host
//             forgets N
//   loss      all nodes end, and are rolled back to the agreed epoch. A node whose host is lost
//             runs on a spare from then on, or beside another node at its partner
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct JobRecord;

// In the record of a job.
struct JobProtection {
  int64_t every_ms = 0;   // how often an epoch begins; 0: the job is not protected
  int64_t mtbf_ms = 0;    // of a host; not 0: `every_ms` follows from it after each epoch
  uint64_t next = 1;      // the number of the next epoch; none is used twice
  uint64_t agreed = 0;    // the epoch to which the job can be rolled back; 0: none
  int64_t agreed_ns = 0;  // when its nodes stood still; Unix time
  int64_t pause_ms = 0;   // the longest of a node
  uint64_t bytes = 0;     // memory of all nodes
  uint64_t sent_bytes = 0;
  // The hosts that keep the agreed epoch of each node.
  std::vector<std::vector<std::string>> kept_at{};
  // Why the job is being rolled back; empty: it runs. From when it is set until all nodes run
  // again, nothing else may happen to the job.
  std::string rolling_back{};
  // The reason is that a host does not answer, and nothing was stopped yet: if it answers again,
  // the job goes on as it is.
  bool may_still_answer = false;
  unsigned rollbacks = 0;            // how often the job was rolled back
  unsigned rollbacks_to_agreed = 0;  // to the epoch that is agreed on now
};

// Each epoch holds all nodes up.
inline constexpr std::chrono::milliseconds kJobEpochIntervalMin{5'000};

// How often an epoch begins now: as given, or, with an MTBF, as costs the least time after an epoch
// with this pause (best_interval()). A job has as many chances to fail as its nodes have hosts.
std::chrono::milliseconds choose_interval(const JobRecord& job);
// How many hosts have nodes.
size_t count_hosts(const JobRecord& job);

nlohmann::json to_json(const JobProtection& protection);
// Throws nlohmann::json::exception.
JobProtection parse_job_protection(const nlohmann::json& json);

// A job that fails again and again right after an epoch is at fault itself.
inline constexpr unsigned kRollbacksToOneEpochMax = 3;

// Whether the loss of a node is no end of the job.
bool can_roll_back(const JobProtection& protection);

// Returns why the job cannot be rolled back now: a move whose end is not known has a copy of a node
// elsewhere, which may still run. Empty: it can.
std::string unsettled_move(const JobRecord& job);

// The partner of each node: the next host of the job, in its order, that has a node or is a spare.
// Errors: ENOSPC: a node has no other host.
Result<std::vector<std::string>> choose_partners(const JobRecord& job);

// How a node is rolled back.
struct NodeRollback {
  std::string host;  // where it runs afterwards
  std::string from;  // a host that keeps its epoch, and sends it to `host`; empty: `host` keeps it
};

// `is_lost`: whether a host is lost. Errors: ENODATA: no host that is left keeps the epoch of a
// node; ENOSPC: no host is left for a node.
Result<std::vector<NodeRollback>> plan_rollback(
    const JobRecord& job, const std::function<bool(const std::string& host)>& is_lost);

// The record after a rollback: the hosts of the nodes, and of the spares that have taken one.
void note_rollback(JobRecord& job, const std::vector<NodeRollback>& rollbacks,
                   const std::function<bool(const std::string& host)>& is_lost);

}  // namespace ppmr
