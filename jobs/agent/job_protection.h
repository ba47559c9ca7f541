// What the home of a protected job knows about its epochs, and what it decides from that. Pure.
//
//   epoch N   every node is captured while all nodes stand still; the epoch of each node is kept on
//             its own host and at a partner, which is the next host of the job
//   agreed    the epochs of all nodes are kept, and the job can be rolled back to N. All hosts keep
//             N until the next epoch is agreed
//   loss      all nodes end, and are rolled back to the agreed epoch. A node whose host is lost
//             then runs on a spare, or at its partner beside another node
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

// The part of a job's record about its protection.
struct JobProtection {
  int64_t every_ms = 0;   // how often an epoch begins; 0: the job is not protected
  int64_t mtbf_ms = 0;    // of a host; not 0: each epoch changes `every_ms`, see choose_interval()
  uint64_t next = 1;      // the number of the next epoch; no number is used twice
  uint64_t agreed = 0;    // the epoch to which the job can be rolled back; 0: none
  int64_t agreed_ns = 0;  // when the nodes stood still for the agreed epoch; Unix time
  int64_t pause_ms = 0;   // the longest pause of a node in that epoch
  uint64_t bytes = 0;     // memory of all nodes
  uint64_t sent_bytes = 0;
  // The hosts that keep the agreed epoch of each node.
  std::vector<std::vector<std::string>> kept_at{};
  // Why the job is being rolled back; empty: it runs. As long as this is set, until all nodes run
  // again, the job has no other epoch, move or suspension.
  std::string rolling_back{};
  // True: the reason is a host that does not answer, and no node was stopped yet. If the host
  // answers again, the job goes on without a rollback.
  bool may_still_answer = false;
  unsigned rollbacks = 0;            // how often the job was rolled back
  unsigned rollbacks_to_agreed = 0;  // how often it was rolled back to the present agreed epoch
};

// The shortest interval between two epochs, because each epoch freezes all nodes.
inline constexpr std::chrono::milliseconds kJobEpochIntervalMin{5'000};

// Returns the time between two epochs. Without an MTBF, it does not change. With an MTBF, it is the
// time that costs the job least (best_interval()), computed from the pause of the last epoch and
// from the MTBF of the job: each host with a node can fail.
std::chrono::milliseconds choose_interval(const JobRecord& job);
// Returns how many hosts have nodes of the job.
size_t count_hosts(const JobRecord& job);

nlohmann::json to_json(const JobProtection& protection);
// Throws nlohmann::json::exception.
JobProtection parse_job_protection(const nlohmann::json& json);

// After this number of rollbacks to the same epoch, the job ends: then probably its program is the
// cause of the losses.
inline constexpr unsigned kRollbacksToOneEpochMax = 3;

// Returns whether the job can be rolled back after the loss of a node. Otherwise the job ends.
bool can_roll_back(const JobProtection& protection);

// Returns why the job cannot be rolled back now: a node has a move whose result is not known, so a
// copy of the node may run at another host. Empty: it can be rolled back.
std::string unsettled_move(const JobRecord& job);

// Returns the partner of each node: the next host after the node's host, in the order of the job's
// hosts, that has a node or is a spare. Errors: ENOSPC: there is no such host for a node.
Result<std::vector<std::string>> choose_partners(const JobRecord& job);

// Where and from which host's copy a node is rolled back.
struct NodeRollback {
  std::string host;  // where it runs afterwards
  std::string from;  // the host that sends the node's epoch to `host`; empty: `host` keeps it
};

// Plans the rollback of each node to the agreed epoch. `is_lost`: whether a host is lost. Errors:
// ENODATA: no host that is left keeps the epoch of a node.
Result<std::vector<NodeRollback>> plan_rollback(
    const JobRecord& job, const std::function<bool(const std::string& host)>& is_lost);

// Updates the record after a rollback: the hosts of the nodes, the states of the hosts, and the
// number of rollbacks.
void note_rollback(JobRecord& job, const std::vector<NodeRollback>& rollbacks,
                   const std::function<bool(const std::string& host)>& is_lost);

}  // namespace ppmr
