// What a suspended job is, and the steps between hosts that suspend a job and let it go on. Each
// function sends requests to the agents of the hosts, as in job_epochs.h.
//
//   suspend  epoch: all nodes are captured, and stand still afterwards
//            write: each node's epoch is in its file, synced and read back
//            stop: all processes of the job end. From here on the job either becomes suspended, or
//            is rolled back to that epoch
//            publish: the file of the job gets its final name; now the job is suspended
//
//   resume   join, read: the hosts make places for the nodes, and read their epochs
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
  std::string suspension;  // the ID of this suspension: 16 hexadecimal digits
  std::string job;         // NodeSpec::job, which stays the same
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

// Returns the record of a suspended job that goes on, without the home's address. `record` has the
// user, the launcher and the allocation of the new run. Errors: EACCES: the job belongs to another
// user; EINVAL: the number of hosts differs from the number of nodes; ENOSPC: a protected job lacks
// a host for partners.
Result<JobRecord> plan_resumption(const SuspendedJob& suspended, JobRecord record,
                                  const std::vector<std::string>& hosts,
                                  const std::vector<std::string>& spares);

// Where the files of a suspension are.
struct SuspensionPlace {
  std::string directory;  // absolute
  std::string suspension;
  std::string key_id{};  // the key with which all hosts must encrypt; not needed to read
};

// Writes the epoch of all nodes into their files. The nodes stand still meanwhile, and afterwards
// for as long as hold_nodes() gives. Errors: the first error of a host.
Status write_nodes(const JobRecord& job, uint64_t number, const SuspensionPlace& place,
                   const AskHost& ask);
// Lets all nodes stand still for another half a minute.
Status hold_nodes(const JobRecord& job, uint64_t number, const AskHost& ask);
// Ends all processes of the job. No process runs between its epoch and its end.
Status stop_nodes(const JobRecord& job, const AskHost& ask);

// Lets all nodes go on, on the hosts of the record. `home`: the name of this host.
Status resume_nodes(const JobRecord& job, const std::string& home, const SuspensionPlace& place,
                    const AskHost& ask);

}  // namespace ppmr
