// A job as its home knows it: the agent of the host where `ppmr job run` was started. Only the home
// decides where the job's nodes are; the other hosts' agents ask it.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "jobs/node/node_spec.h"
#include "processes/process_identity.h"

namespace ppmr {

// Of a host in a job. The names are those of the paper "RDMA-Based Job Migration Framework for MPI
// over InfiniBand" (Cluster 2010).
enum class HostState {
  kReady,     // has a node of the job
  kSpare,     // can take one
  kMoving,    // gives its node away, or takes one
  kInactive,  // was left, or failed; the job does not use it any more
};

std::string to_string(HostState state);

struct JobHost {
  std::string name;
  HostState state = HostState::kReady;
  int64_t since_ns = 0;       // of the state; Unix time
  std::string reason{};       // why it is inactive
  unsigned failed_moves = 0;  // to this host
};

struct JobMove {
  std::string from, to;
  int64_t ended_ns = 0;    // Unix time
  double downtime_s = -1;  // negative: unknown, or the node did not move
  std::string error{};     // empty: it moved
};

struct JobNodePlace {
  std::string name, address, host;
  std::string moving_to{};  // the host that is reserved for it; empty: it does not move
  std::vector<JobMove> moves{};
};

struct JobRecord {
  std::string id;
  JobUser user{};
  std::string token;
  std::string allocation{};    // see NodeSpec
  ProcessIdentity launcher{};  // the job ends with it
  std::string boot_id;         // of the launcher
  std::string port_address;    // the home's own address in the job's network
  bool ending = false;         // its nodes are being removed
  std::vector<JobHost> hosts{};
  std::vector<JobNodePlace> nodes{};

  JobHost* find_host(const std::string& name);
  const JobHost* find_host(const std::string& name) const;
  // NodeSpec::hosts of every node.
  std::string hosts_text() const;
  NodeSpec spec_of(unsigned index, const std::string& home, const std::string& hosts_text) const;
  std::string container_of(unsigned index) const { return container_name(id, index); }
  // The namespace through which the launcher reaches the job.
  std::string port_name() const { return "ppmr-" + id + "-home"; }
};

void set_state(JobHost& host, HostState state, const std::string& reason = "");
int64_t unix_time_ns();

nlohmann::json to_json(const JobRecord& job);
// Throws nlohmann::json::exception.
JobRecord parse_job_record(const nlohmann::json& json);
// What users may see: everything but the token.
nlohmann::json public_view(const JobRecord& job);

}  // namespace ppmr
