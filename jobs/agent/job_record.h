// The home's record of a job. The home is the agent of the host where `ppmr job run` was started.
// Only the home decides where the job's nodes are. The agents of the other hosts ask the home.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "jobs/agent/host_contacts.h"
#include "jobs/agent/host_pool.h"
#include "jobs/agent/host_state.h"
#include "jobs/agent/job_protection.h"
#include "jobs/node/node_spec.h"
#include "processes/process_identity.h"

namespace ppmr {

struct JobHost {
  std::string name;
  HostState state = HostState::kReady;
  int64_t since_ns = 0;         // when `state` began; Unix time
  std::string reason{};         // why the host is inactive or out
  unsigned failed_moves = 0;    // number of failed moves to this host
  int64_t pool_changed_ns = 0;  // PoolReport::changed_ns of the newest report of the host
};

struct JobMove {
  std::string from, to;
  int64_t ended_ns = 0;  // Unix time
  std::optional<double> downtime_s{};
  std::string error{};  // why the node did not move; empty: it moved
};

struct JobNodePlace {
  std::string name, address, host;
  std::string moving_to{};  // the host that is reserved for the node; empty: it does not move
  std::vector<JobMove> moves{};
};

struct JobRecord {
  std::string id;
  JobUser user{};
  std::string token;
  std::string allocation{};    // see NodeSpec
  ProcessIdentity launcher{};  // the job ends with this process
  std::string boot_id;         // the boot of the home in which `launcher` runs
  std::string port_address;    // the home's own address in the job's network
  bool ending = false;         // whether its nodes are being removed
  std::vector<JobHost> hosts{};
  std::vector<JobNodePlace> nodes{};
  JobProtection protection{};
  // The directory and the ID of the suspension that is in progress. Set before the home stops the
  // nodes, until the job has ended, or was rolled back after a failure. Empty: none.
  std::string suspending_to{};
  std::string suspension{};
  bool rdma = false;  // see NodeSpec

  JobHost* find_host(const std::string& name);
  const JobHost* find_host(const std::string& name) const;
  // Returns NodeSpec::hosts, which is the same text for every node of the job.
  std::string hosts_text() const;
  NodeSpec spec_of(unsigned index, const std::string& home, const std::string& hosts_text) const;
  std::string container_of(unsigned index) const { return container_name(id, index); }
  // Returns the name of the namespace through which the launcher reaches the job.
  std::string port_name() const { return "ppmr-" + id + "-home"; }
};

// Changes the state of the host, see host_step(). Errors: EPERM: nothing has changed.
Status take_step(JobHost& host, HostEvent event, const std::string& reason = "");
// Changes the host as its report requires, for a job of `user`. Returns whether it has changed.
// Ignores a report that is older than the newest one.
bool note_report(JobHost& host, const PoolReport& report, uid_t user);
int64_t unix_time_ns();

nlohmann::json to_json(const JobRecord& job);
// Throws nlohmann::json::exception.
JobRecord parse_job_record(const nlohmann::json& json);
// Returns the record as users may see it: everything but the token. `contact`: returns what the
// home knows about a host.
nlohmann::json public_view(const JobRecord& job,
                           const std::function<HostContact(const std::string& host)>& contact);

}  // namespace ppmr
