#include "preflight/policy/bundle_limits.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "preflight/policy/restart_policy.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Names that runc uses -> names in policies.
const std::map<std::string, std::string> kNamespaces = {
    {"pid", "pid"},   {"network", "net"}, {"ipc", "ipc"},       {"uts", "uts"},
    {"mount", "mnt"}, {"user", "user"},   {"cgroup", "cgroup"}, {"time", "time"}};

// Parses config.json. Throws nlohmann::json::exception.
BundleLimits parse(const json& config) {
  BundleLimits limits;
  const json capabilities =
      config.at("process").value("capabilities", json::object()).value("bounding", json::array());
  const auto& names = capability_names();
  for (std::string name : capabilities) {
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return tolower(c); });
    const auto found =
        std::find(names.begin(), names.end(), name.substr(std::min<size_t>(4, name.size())));
    if (found != names.end()) limits.capabilities |= uint64_t{1} << (found - names.begin());
  }
  for (const json& entry : config.at("linux").value("namespaces", json::array())) {
    const auto known = kNamespaces.find(entry.at("type"));
    if (known != kNamespaces.end() && entry.value("path", "").empty()) {
      limits.namespaces.insert(known->second);
    }
  }
  return limits;
}

}  // namespace

Result<BundleLimits> read_bundle_limits(const std::string& bundle) {
  const std::string path = bundle + "/config.json";
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return system_failure("read the bundle's", path);
  if (found.st_uid != 0 || (found.st_mode & 022) != 0) {
    return failure(EPERM, fmt::format("{}: others than root can change it, and it limits the "
                                      "container: chown root {}; chmod go-w {}",
                                      path, path, path));
  }
  auto text = read_whole_file(path);
  if (!text) return failure(text.error());
  try {
    return parse(json::parse(*text));
  } catch (const json::exception& error) {
    return failure(EINVAL, path + ": " + error.what());
  }
}

}  // namespace ppmr
