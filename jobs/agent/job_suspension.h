// What a suspended job is, and the steps between hosts that suspend one and let it go on. Each
// function asks the agents of the hosts, as in job_epochs.h.
//
//   suspend  an epoch of all nodes, after which all stand still
//            write: each node's epoch is in its file, synced and read back
//            stop: all processes of the job end. From here on it either is suspended, or is rolled
//            back to that epoch
//            the file of the job gets its name: it is suspended
//
//   resume   join, read: the hosts have the nodes' places and epochs
//            run: all nodes go on from the epoch
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "jobs/agent/job_epochs.h"

namespace ppmr {

struct SuspendedNode {
  std::string name, address;
};

// What the file of a suspended job has, beside the files of its nodes.
struct SuspendedJob {
  std::string suspension;  // 16 hexadecimal digits: no other one has them
  std::string job;         // NodeSpec::job: it stays
  uid_t uid = 0;
  std::string token;  // NodeSpec::token
  uint64_t epoch = 0;
  int64_t frozen_ns = 0;  // Unix time
  uint64_t bytes = 0;     // memory of all nodes
  std::vector<SuspendedNode> nodes;
  nlohmann::json launcher;  // what `ppmr job run` needs to go on, see launcher_state.h
};

bool is_suspension_id(const std::string& text);
nlohmann::json to_json(const SuspendedJob& job);
// Checks every field. Errors: EPROTO.
Result<SuspendedJob> parse_suspended_job(const nlohmann::json& json);

// The record of a suspended job that goes on, without its addresses on this host. `record` has the
// user, the launcher and the allocation of the new run. Errors: EACCES: it is the job of another
// user; EINVAL: another number of hosts.
Result<JobRecord> plan_resumption(const SuspendedJob& suspended, JobRecord record,
                                  const std::vector<std::string>& hosts,
                                  const std::vector<std::string>& spares);

// Where the files of a suspension are.
struct SuspensionPlace {
  std::string directory;  // absolute
  std::string suspension;
  std::string key_id{};  // of the key that encrypts on all hosts; not needed to read
};

// Writes the epoch of all nodes, which stand still until it returns, and afterwards for as long as
// they were held. Errors: the first one of a host.
Status write_nodes(const JobRecord& job, uint64_t number, const SuspensionPlace& place,
                   const AskHost& ask);
// Keeps all nodes standing still for some time.
Status hold_nodes(const JobRecord& job, uint64_t number, const AskHost& ask);
// Ends all processes of the job. None runs between its epoch and its end.
Status stop_nodes(const JobRecord& job, const AskHost& ask);

// Lets all nodes go on, on the hosts of the record. `home`: the name of this host.
Status resume_nodes(const JobRecord& job, const std::string& home, const SuspensionPlace& place,
                    const AskHost& ask);

}  // namespace ppmr
