// What a container of runc's needs of the node that it runs on: its bundle, the same on both nodes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "restart_loader/containers/runc.h"

namespace ppmr {

// config.json of a bundle, as far as it concerns a move.
struct BundleFacts {
  struct Mount {
    std::string destination;  // in the container
    std::string source;       // on the node; empty: a file system of the container's own
  };

  std::string directory;
  std::string config_digest;     // SHA-256 of config.json
  std::string root_file_system;  // on the node
  std::vector<Mount> mounts;
  std::vector<std::string> namespaces;  // paths of those that it joins
  bool terminal = false;

  // Where on the node a file of the container is; nullopt: nowhere, it has a mount of its own
  // there.
  std::optional<std::string> host_path(const std::string& path) const;
  // What has to be there at the target: the root file system, what is mounted into it, namespaces.
  std::vector<std::string> needed_paths() const;
};

// Errors: EPROTO and what is wrong with it.
Result<BundleFacts> parse_bundle(const std::string& config, const std::string& directory);
// Errors: of the file system; EPROTO.
Result<BundleFacts> read_bundle(const std::string& directory);

// One that is to be moved.
struct ContainerFacts {
  ContainerState state;
  BundleFacts bundle;
  std::string runc_version;
  bool unified_cgroups = false;  // cgroup v2
  // Put into it later (runc exec): no descendants of its first process, so not moved with it.
  std::vector<pid_t> outsiders;
};

// Whether the control groups of this node are those of version 2.
bool has_unified_cgroups();

// Looks only. Errors: ENOENT where runc does not know it.
Result<ContainerFacts> gather_container_facts(const std::string& name);

struct ContainerQuestion {
  std::string name;
  std::string bundle;
  std::string config_digest;
  std::vector<std::string> paths;
};

enum class BundleVerdict { kSame, kMissing, kOther };

struct ContainerAnswer {
  std::string runc_version;
  std::string runc_problem;  // why there is no version
  bool name_taken = false;
  BundleVerdict bundle = BundleVerdict::kMissing;
  std::vector<std::string> paths_missing;
  bool unified_cgroups = false;
};

ContainerQuestion question_about(const ContainerFacts& container);
// At the target; what comes in is a peer's and checked. Errors: EINVAL.
Result<ContainerAnswer> answer_about(const ContainerQuestion& question);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ContainerQuestion, name, bundle, config_digest, paths)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ContainerAnswer, runc_version, runc_problem, name_taken, bundle,
                                   paths_missing, unified_cgroups)

}  // namespace ppmr
