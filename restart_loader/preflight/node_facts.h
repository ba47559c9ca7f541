// What a node is, as far as it decides whether a process can be dumped, or go on, there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

// Names as `criu check --feature` has them.
inline constexpr const char* kMemoryTrackingFeature = "mem_dirty_track";  // for pre-copy
inline constexpr const char* kLazyFeature = "uffd-noncoop";               // for a lazy restart

struct NodeFacts {
  std::string host;
  std::string architecture;               // "x86_64"
  std::string kernel;                     // "6.1.0-18-amd64"
  std::string criu_path;                  // empty: there is none
  std::string criu_version;               // "4.2.1"
  std::string criu_problem;               // why `criu check` failed; empty: it did not
  std::vector<std::string> features;      // those of the above that are there
  std::vector<std::string> cpu_features;  // instructions that a program may be using, sorted
  uint64_t memory_available_bytes = 0;
  int64_t store_free_bytes = -1;                   // what the image store still takes; -1: unknown
  uid_t user = 0;                                  // who would run CRIU there
  uint64_t capabilities = 0;                       // effective, one bit each
  std::map<std::string, std::string> hard_limits;  // "Max open files": "1048576"

  bool has_feature(const std::string& feature) const;
  bool has_capability(int capability) const { return (capabilities >> capability & 1) != 0; }
};

// `criu`: its path, as find_criu() gives it; empty when there is none. Takes some 0.1 s, for CRIU
// is run. What cannot be found out is left empty.
NodeFacts gather_node_facts(const std::string& criu);

// The features of /proc/cpuinfo that a program can come to depend on: instructions, not properties
// of the machine.
std::vector<std::string> parse_cpu_features(std::string_view cpuinfo);
// "Version: 4.2.1\n" -> "4.2.1".
std::string parse_criu_version(std::string_view text);
// /proc/PID/limits: each hard limit by its name.
std::map<std::string, std::string> parse_hard_limits(std::string_view text);

// JSON with the members' names. from_json() may throw nlohmann::json::exception.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeFacts, host, architecture, kernel, criu_path, criu_version,
                                   criu_problem, features, cpu_features, memory_available_bytes,
                                   store_free_bytes, user, capabilities, hard_limits)

}  // namespace ppmr
