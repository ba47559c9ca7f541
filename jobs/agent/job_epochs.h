// The home leads the epochs of a protected job, and its rollback after a loss. Each function asks
// the agents of the job's hosts, all at once, step by step; no step begins before all hosts have
// done the one before.
//
//   epoch   begin: rounds, while the nodes run
//           freeze: every node stands still, cut off from the job's network, and is captured
//           go: all run on. From here on the epoch is one whole or does not count
//           kept: each node's epoch is on its host and at its partner
//
//   rollback  stop: all processes of the job end, on every host that answers
//           join, forward: the host that takes a lost node gets its place and its epoch
//           run: all nodes go on from the epoch. Connections between them are those of the epoch
//
// A node that no longer stands still when its part of `go` arrives has given the epoch up, and says
// so at `kept`.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "jobs/agent/job_protection.h"
#include "jobs/agent/job_record.h"

namespace ppmr {

// Asks the agent of a host (ask_peer()). Called on several threads.
using AskHost = std::function<Result<nlohmann::json>(
    const std::string& host, const nlohmann::json& request, std::chrono::milliseconds patience)>;

std::vector<std::string> hosts_of(const JobRecord& job);

// Makes the request about a node of the job.
using RequestOf = std::function<nlohmann::json(size_t node, const std::string& container)>;
using OnAnswer = std::function<void(size_t node, const nlohmann::json& answer)>;

// Asks the host of each node, all at once. Returns the first error, with the node's name.
Status ask_nodes(const JobRecord& job, const std::vector<std::string>& hosts,
                 std::chrono::milliseconds patience, const AskHost& ask,
                 const RequestOf& request_of, const OnAnswer& on_answer = {});

struct KeptEpoch {
  int64_t frozen_ns = 0;  // when all nodes stood still; Unix time
  int64_t pause_ms = 0;   // the longest of a node
  uint64_t bytes = 0;
  uint64_t sent_bytes = 0;
  std::vector<std::vector<std::string>> kept_at;  // see JobProtection
};

enum class EpochEnd {
  kGoesOn,  // the nodes run on, and partners keep the epoch, too
  kHeld,    // the nodes stand still until they are let go, or have ended (job_suspension.h)
};

// Errors: why the epoch does not count. The nodes run on then.
Result<KeptEpoch> run_epoch(const JobRecord& job, uint64_t number, EpochEnd end,
                            const AskHost& ask);

// Lets held nodes run on, as far as their hosts answer.
void let_nodes_go(const JobRecord& job, uint64_t number, const AskHost& ask);

// Rolls all nodes back to the epoch that was agreed on. `home`: the name of this host. May be
// repeated after an error: a node that runs already is rolled back once more.
Status roll_back(const JobRecord& job, const std::string& home,
                 const std::vector<NodeRollback>& rollbacks, const AskHost& ask);

// Forgets the epochs of an ended job, as far as its hosts answer.
void forget_epochs(const JobRecord& job, const AskHost& ask);

}  // namespace ppmr
