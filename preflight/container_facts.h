// What a runc container requires of its node. The bundle must be the same on both nodes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "restart_loader/containers/container_port.h"
#include "restart_loader/containers/runc.h"

namespace ppmr {

// The parts of a bundle's config.json that matter for a move.
struct BundleFacts {
  struct Mount {
    std::string destination;  // path in the container
    std::string source;       // path on the node; empty: a file system that only the container has
  };

  std::string directory;
  std::string config_digest;     // SHA-256 of config.json without its control group
  std::string root_file_system;  // path on the node
  std::vector<Mount> mounts;
  std::vector<std::string> namespaces;  // paths of the namespaces that the container joins
  ContainerPort port;
  bool terminal = false;

  // Translates the path of a file in the container to its path on the node. Returns nullopt if the
  // file is in a file system that only the container has.
  std::optional<std::string> host_path(const std::string& path) const;
  // Returns the paths that the target must have: the root file system, sources of mounts,
  // namespaces.
  std::vector<std::string> needed_paths() const;
  // Returns the network interfaces that the target must have.
  std::vector<std::string> needed_interfaces() const;
};

// Parses the text of config.json. Errors: EPROTO.
Result<BundleFacts> parse_bundle(const std::string& config, const std::string& directory);
// Reads `directory`/config.json. Errors: of the file system; EPROTO.
Result<BundleFacts> read_bundle(const std::string& directory);

// A container to move.
struct ContainerFacts {
  ContainerState state;
  BundleFacts bundle;
  std::string runc_version;
  bool unified_cgroups = false;  // whether the node has cgroup v2
  // Processes of `runc exec`. They are not descendants of the container's first process, so they do
  // not move with it.
  std::vector<pid_t> exec_processes;
};

// Returns whether this node has cgroup v2.
bool has_unified_cgroups();

// Gathers the facts and changes nothing. Errors: ENOENT when runc has no such container.
Result<ContainerFacts> gather_container_facts(const std::string& name);

struct ContainerQuestion {
  std::string name;
  std::string bundle;
  std::string config_digest;
  std::vector<std::string> paths;
  // Interfaces of the node: the container's port and its bridge.
  std::vector<std::string> interfaces;
};

enum class BundleVerdict { kSame, kMissing, kOther };

struct ContainerAnswer {
  std::string runc_version;
  std::string runc_problem;  // why runc does not work; empty: it works
  bool name_taken = false;
  BundleVerdict bundle = BundleVerdict::kMissing;
  std::vector<std::string> paths_missing;
  std::vector<std::string> interfaces_missing;
  bool unified_cgroups = false;
};

ContainerQuestion make_question(const ContainerFacts& container);
// Answers a question at the target. Validates the question, because it comes from a peer. Errors:
// EINVAL.
Result<ContainerAnswer> answer_question(const ContainerQuestion& question);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ContainerQuestion, name, bundle, config_digest, paths,
                                   interfaces)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ContainerAnswer, runc_version, runc_problem, name_taken, bundle,
                                   paths_missing, interfaces_missing, unified_cgroups)

}  // namespace ppmr
