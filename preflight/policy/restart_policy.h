// The file of `ppmr target --restart-policy`: which processes its peers may restart on this node.
// docs/security.md is its reference. The target's daemon reads it at start, to refuse a wrong one;
// each migration reads it again. What it says is checked against the images of a checkpoint by
// preflight/policy.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct IdRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

// The defaults are those without a file. An empty list accepts nothing beyond what its comment
// says.
struct RestartPolicy {
  std::string file;  // "": none was given
  // `--allow-root-restart`: whatever a peer sends.
  bool everything = false;
  std::vector<IdRange> users = {{1, UINT32_MAX}};  // without root
  std::vector<IdRange> groups;                     // beside those that the users have on this node
  // Paths; one that ends with a slash stands for everything below it.
  std::vector<std::string> executables = {"/"};
  std::vector<std::string> roots;      // beside "/"
  std::vector<std::string> files;      // beside those that the users may open on this node
  std::vector<std::string> bundles;    // of runc containers
  std::set<std::string> capabilities;  // "net_bind_service"; with users that include root: all
  std::set<std::string> namespaces;    // "net"
  std::set<std::string> resources;     // "inotify"; kResources
  std::set<std::string> criu_options;  // "--manage-cgroups"

  bool accepts_root() const;
};

bool includes(const std::vector<IdRange>& ranges, uint32_t id);
bool includes(const std::vector<std::string>& paths, const std::string& path);

// The names of CAP_0, CAP_1 ... in lower case, without "cap_".
const std::vector<std::string>& capability_names();

// Errors: EINVAL; the message names the fault.
Result<RestartPolicy> parse_restart_policy(const nlohmann::json& json);
// Errors: of the file system; EPERM if anyone but root and this user may change the file; EINVAL.
Result<RestartPolicy> read_restart_policy(const std::string& path);
// For the record of a migration: parse_restart_policy() returns an equal policy.
nlohmann::json to_json(const RestartPolicy& policy);

}  // namespace ppmr
