// The file of `ppmr target --restart-policy`: which processes the target's peers may restart on
// this node. docs/security.md is its reference. The target's daemon reads the file at its start,
// and refuses an invalid one. Each migration reads the file again. preflight/policy compares the
// images of a checkpoint with the policy.
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

// The defaults are the policy without a file. An empty list accepts nothing beyond the exception in
// its comment.
struct RestartPolicy {
  std::string file;  // "": none was given
  // `--allow-root-restart`: accepts everything that a peer sends.
  bool everything = false;
  std::vector<IdRange> users = {{1, UINT32_MAX}};  // all users but root
  std::vector<IdRange> groups;  // besides the groups that the users have on this node
  // Paths. A path that ends with a slash stands for everything below it.
  std::vector<std::string> executables = {"/"};
  std::vector<std::string> roots;      // beside "/"
  std::vector<std::string> files;      // besides the files that the users may open on this node
  std::vector<std::string> bundles;    // directories of runc containers
  std::set<std::string> capabilities;  // "net_bind_service"; with users that include root: all
  std::set<std::string> namespaces;    // "net"
  std::set<std::string> resources;     // "inotify"; kResources
  std::set<std::string> criu_options;  // "--manage-cgroups"

  bool accepts_root() const;
};

bool includes(const std::vector<IdRange>& ranges, uint32_t id);
bool includes(const std::vector<std::string>& paths, const std::string& path);

// Returns the names of CAP_0, CAP_1 ... in lower case, without "cap_".
const std::vector<std::string>& capability_names();

// Parses a policy. Errors: EINVAL; the message names the fault.
Result<RestartPolicy> parse_restart_policy(const nlohmann::json& json);
// Reads the file. Errors: of the file system; EPERM if users other than root and this user may
// change the file; EINVAL.
Result<RestartPolicy> read_restart_policy(const std::string& path);
// Returns the policy for the record of a migration. parse_restart_policy() returns an equal policy.
nlohmann::json to_json(const RestartPolicy& policy);

}  // namespace ppmr
