// The properties of a job node that a host needs to make the node. They are the same on every host
// that the node visits.
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
  std::string job;     // 8 hexadecimal digits
  unsigned index = 0;  // number of the node in its job
  // The node's host name, and its name for MPI: the name of its first host.
  std::string name;
  std::string address;  // IPv4 address in the job's network
  std::string home;     // the host whose agent manages the job
  std::string token;    // token for commands in the job's nodes (jobs/command)
  JobUser user{};
  std::string allocation{};  // the scheduler's number of the job; empty: no scheduler
  // A line "ADDRESS NAME" for each node of the job, in the order of the nodes. It is one text and
  // not a list, because a job of N nodes makes, sends and stores it N times.
  std::string hosts{};

  // True: its processes may use the host's RDMA devices (host_rdma.h), and load the library with
  // which they can move (verbs_library).
  bool rdma = false;

  size_t node_count() const;
  std::string container() const;
};

// Returns the name of a node's container. Its network namespace and its directory have the same
// name.
std::string container_name(const std::string& job, unsigned index);

nlohmann::json to_json(const NodeSpec& spec);
// Parses a node, and checks every field, because names become parts of paths. Errors: EPROTO.
Result<NodeSpec> parse_node_spec(const nlohmann::json& json);

// Returns whether `text` can be the name of a host: letters, digits, '-', '_' and '.', without '-'
// or '.' at the start.
bool is_host_name(const std::string& text);
bool is_job_id(const std::string& text);
// Returns whether `text` can be a scheduler's number of a job.
bool is_allocation(const std::string& text);
// Returns whether `text` can be a NodeSpec::container().
bool is_job_container(const std::string& text);

}  // namespace ppmr
