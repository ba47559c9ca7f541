// What a host needs to know to make a job node. The same on every host that the node visits.
#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// The user of a job. Its processes run with these IDs.
struct JobUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups{};
};

struct NodeSpec {
  std::string job;      // 8 hexadecimal digits
  unsigned index = 0;   // of the node in its job
  std::string name;     // the node's host name, and its name for MPI: that of its first host
  std::string address;  // IPv4, of the job's network
  std::string home;     // the host whose agent manages the job
  std::string token;    // for commands in the job's nodes (jobs/command)
  JobUser user{};
  std::string allocation{};  // the scheduler's number of the job; empty: no scheduler
  // A line "ADDRESS NAME" for each node of the job, in their order. One text, because a job of N
  // nodes makes, sends and stores it N times.
  std::string hosts{};

  size_t node_count() const;
  std::string container() const;
};

// The name of a node's container, of its network namespace and of its directory.
std::string container_name(const std::string& job, unsigned index);

nlohmann::json to_json(const NodeSpec& spec);
// Checks every field: names become parts of paths. Errors: EPROTO.
Result<NodeSpec> parse_node_spec(const nlohmann::json& json);

// Whether `text` can be the name of a host: letters, digits, '-', '_' and '.', not at the start '-'
// or '.'.
bool is_host_name(const std::string& text);
bool is_job_id(const std::string& text);
// Whether `text` can be a scheduler's number of a job.
bool is_allocation(const std::string& text);
// Whether `text` can be a NodeSpec::container().
bool is_job_container(const std::string& text);

}  // namespace ppmr
