// The properties of a node that decide whether a process can be dumped or restored there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "preflight/criu_answers.h"
#include "preflight/rdma_release/rdma_check.h"

namespace ppmr {

// Numbers of capabilities, from linux/capability.h.
inline constexpr int kCapSysAdmin = 21;
inline constexpr int kCapSysResource = 24;

struct NodeFacts {
  std::string host;
  std::string architecture;               // "x86_64"
  std::string kernel;                     // "6.1.0-18-amd64"
  std::string criu_path;                  // empty: no CRIU was found
  std::string criu_version;               // "4.2.1"
  std::string criu_problem;               // why `criu check` failed; empty: it succeeded
  std::vector<std::string> features;      // the features of criu_answers.h that this CRIU supports
  std::vector<std::string> cpu_features;  // instruction sets that a program may use, sorted
  uint64_t memory_available_bytes = 0;
  int64_t store_free_bytes = -1;                   // free space in the image store; -1: unknown
  uid_t user = 0;                                  // the user that runs CRIU
  uint64_t capabilities = 0;                       // effective capabilities, one bit each
  std::map<std::string, std::string> hard_limits;  // "Max open files": "1048576"
  uint64_t pipe_max_bytes = 0;                     // fs.pipe-max-size; 0: unknown
  std::vector<std::string> rdma_ports;             // those that ppmr can use: "mlx5_0:1"
  // One for each port of each device. Empty although there are ports: the node has version 0.2.0.
  std::vector<RdmaAbilities> rdma_abilities;
  int64_t clock_ns = 0;  // CLOCK_REALTIME when all other facts were known

  bool has_feature(const std::string& feature) const;
  // Returns whether CRIU can keep this much memory in pipes, as it does during a lazy dump.
  bool can_hold_in_pipes(uint64_t memory_bytes) const;
  bool has_capability(int capability) const { return (capabilities >> capability & 1) != 0; }
};

// Gathers the facts of this node. Leaves fields empty that it cannot determine.
NodeFacts gather_node_facts(CriuAnswers& criu);

// Returns the flags of /proc/cpuinfo that programs may depend on: instruction sets, not properties
// of the machine.
std::vector<std::string> parse_cpu_features(std::string_view cpuinfo);
// Returns the hard limits in /proc/PID/limits, by name.
std::map<std::string, std::string> parse_hard_limits(std::string_view text);

// from_json() throws nlohmann::json::exception for a field of a wrong type. A node of another
// version may lack some.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeFacts, host, architecture, kernel, criu_path,
                                                criu_version, criu_problem, features, cpu_features,
                                                memory_available_bytes, store_free_bytes, user,
                                                capabilities, hard_limits, pipe_max_bytes,
                                                rdma_ports, rdma_abilities, clock_ns)

}  // namespace ppmr
