// The home leads the epochs of a protected job, and its rollback after a loss. Each function goes
// step by step, and asks the agents of all hosts of the job at once. No step begins before all
// hosts have done the step before.
//
//   epoch   begin: rounds copy the memory while the nodes run
//           freeze: every node is cut off from the job's network, frozen and captured
//           go: all nodes run on. From here on, the epoch counts only if all nodes keep it
//           kept: each node's epoch is on its host and at its partner
//
//   rollback  stop: all processes of the job end, on every host that answers
//             join, forward: a host that takes a lost node makes a place for it, and gets its epoch
//             run: all nodes go on from the epoch, with the connections that they had in it
//
// A node stands still only for a limited time. If `go` arrives later, the node runs on already and
// has given the epoch up. It reports this at `kept`.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "jobs/agent/job_protection.h"
#include "jobs/agent/job_record.h"

namespace ppmr {

// Sends a request to the agent of a host (ask_peer()). Called on several threads.
using AskHost = std::function<Result<nlohmann::json>(
    const std::string& host, const nlohmann::json& request, std::chrono::milliseconds patience)>;

std::vector<std::string> hosts_of(const JobRecord& job);

// Returns the request about a node of the job. `node`: its index.
using RequestOf = std::function<nlohmann::json(size_t node, const std::string& container)>;
using OnAnswer = std::function<void(size_t node, const nlohmann::json& answer)>;

// Sends a request to the host of each node, to all at once. Returns the first error, with the
// node's name. `hosts`: the host of each node.
Status ask_nodes(const JobRecord& job, const std::vector<std::string>& hosts,
                 std::chrono::milliseconds patience, const AskHost& ask,
                 const RequestOf& request_of, const OnAnswer& on_answer = {});

struct KeptEpoch {
  int64_t frozen_ns = 0;  // when all nodes stood still; Unix time
  int64_t pause_ms = 0;   // the longest pause of a node
  uint64_t bytes = 0;
  uint64_t sent_bytes = 0;
  std::vector<std::vector<std::string>> kept_at;  // see JobProtection
};

enum class EpochEnd {
  kGoesOn,  // the nodes run on, and partners keep the epoch, too
  kHeld,    // the nodes stand still until let_nodes_go(), or until their end (job_suspension.h)
};

// Captures an epoch of all nodes. After an error the epoch does not count, and the nodes run on.
Result<KeptEpoch> run_epoch(const JobRecord& job, uint64_t number, EpochEnd end,
                            const AskHost& ask);

// Lets held nodes run on. Logs an error if a host does not answer.
void let_nodes_go(const JobRecord& job, uint64_t number, const AskHost& ask);

// Rolls all nodes back to the agreed epoch. `home`: the name of this host. After an error the
// caller may repeat the call: it rolls a node that runs already back once more.
Status roll_back(const JobRecord& job, const std::string& home,
                 const std::vector<NodeRollback>& rollbacks, const AskHost& ask);

// Removes the epochs of a job on its hosts. Logs an error if a host does not answer.
void forget_epochs(const JobRecord& job, const AskHost& ask);

}  // namespace ppmr
