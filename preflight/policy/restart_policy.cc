#include "preflight/policy/restart_policy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/unique_fd.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr off_t kFileMaxBytes = 1 << 20;
const std::set<std::string> kNamespaces = {"pid", "net",  "ipc",    "uts",
                                           "mnt", "user", "cgroup", "time"};
const std::set<std::string> kResources = {
    "external-files",  "fanotify",       "inotify", "link-remap",     "namespace-files",
    "netlink",         "packet-sockets", "pidfd",   "raw-sockets",    "realtime",
    "system-v-memory", "terminals",      "tun",     "unix-in-flight", "bpf-maps"};

tl::unexpected<Error> wrong(const std::string& key, const json& value, const std::string& what) {
  return failure(EINVAL, fmt::format("\"{}\": {}: {}", key, value.dump(), what));
}

std::optional<uint32_t> number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint32_t> user_named(const std::string& name) {
  const passwd* user = getpwnam(name.c_str());
  return user == nullptr ? std::nullopt : std::optional(user->pw_uid);
}

std::optional<uint32_t> group_named(const std::string& name) {
  const group* found = getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->gr_gid);
}

// Parses "alice", 1000 or "1000-1999".
std::optional<IdRange> parse_range(const json& value,
                                   std::optional<uint32_t> (*named)(const std::string&)) {
  if (value.is_number_unsigned()) {
    if (value > UINT32_MAX) return std::nullopt;
    return IdRange{value, value};
  }
  if (!value.is_string()) return std::nullopt;
  const std::string text = value;
  const size_t dash = std::min(text.find('-'), text.size());
  const auto first = number(text.substr(0, dash));
  const auto last = dash < text.size() ? number(text.substr(dash + 1)) : first;
  if (first && last && *first <= *last) return IdRange{*first, *last};
  const auto id = named(text);
  if (!id) return std::nullopt;
  return IdRange{*id, *id};
}

Status parse_ranges(const json& values, const std::string& key, std::vector<IdRange>& ranges,
                    std::optional<uint32_t> (*named)(const std::string&)) {
  ranges.clear();
  for (const json& value : values) {
    const auto range = parse_range(value, named);
    if (!range) return wrong(key, value, "not a name on this node, a number or a range of numbers");
    ranges.push_back(*range);
  }
  return {};
}

Status parse_paths(const json& values, const std::string& key, std::vector<std::string>& paths) {
  paths.clear();
  for (const json& value : values) {
    if (!value.is_string() || !value.get<std::string>().starts_with('/')) {
      return wrong(key, value, "not an absolute path");
    }
    paths.push_back(value);
  }
  return {};
}

Status parse_names(const json& values, const std::string& key, const std::set<std::string>& known,
                   std::set<std::string>& names) {
  names.clear();
  for (const json& value : values) {
    if (!value.is_string() || !known.contains(value)) {
      return wrong(key, value, fmt::format("unknown; known are {}", fmt::join(known, ", ")));
    }
    names.insert(value.get<std::string>());
  }
  return {};
}

Status parse_options(const json& values, std::set<std::string>& options) {
  for (const json& value : values) {
    if (!value.is_string() || !value.get<std::string>().starts_with("--")) {
      return wrong("criu_options", value, "not a long option");
    }
    options.insert(value.get<std::string>());
  }
  return {};
}

Status parse_key(const std::string& key, const json& value, RestartPolicy& policy) {
  if (key == "file" && value.is_string()) return policy.file = value, Status();
  if (key == "everything" && value.is_boolean()) return policy.everything = value, Status();
  if (!value.is_array()) return wrong(key, value, "unknown key, or not a list");
  if (key == "users") return parse_ranges(value, key, policy.users, user_named);
  if (key == "groups") return parse_ranges(value, key, policy.groups, group_named);
  if (key == "executables") return parse_paths(value, key, policy.executables);
  if (key == "roots") return parse_paths(value, key, policy.roots);
  if (key == "files") return parse_paths(value, key, policy.files);
  if (key == "bundles") return parse_paths(value, key, policy.bundles);
  if (key == "capabilities") {
    const auto& names = capability_names();
    return parse_names(value, key, {names.begin(), names.end()}, policy.capabilities);
  }
  if (key == "namespaces") return parse_names(value, key, kNamespaces, policy.namespaces);
  if (key == "resources") return parse_names(value, key, kResources, policy.resources);
  if (key == "criu_options") return parse_options(value, policy.criu_options);
  return wrong(key, value,
               "unknown key; known are users, groups, executables, roots, files, bundles, "
               "capabilities, namespaces, resources, criu_options and everything");
}

json ranges_to_json(const std::vector<IdRange>& ranges) {
  json list = json::array();
  for (const IdRange& range : ranges) list.push_back(fmt::format("{}-{}", range.first, range.last));
  return list;
}

}  // namespace

bool includes(const std::vector<IdRange>& ranges, uint32_t id) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [id](const IdRange& range) { return range.first <= id && id <= range.last; });
}

bool includes(const std::vector<std::string>& paths, const std::string& path) {
  // Without this check "/srv/app/../../etc/shadow" would be below "/srv/app/".
  if (("/" + path + "/").find("/../") != std::string::npos) return false;
  return std::any_of(paths.begin(), paths.end(), [&](const std::string& accepted) {
    return accepted.ends_with('/') ? path.starts_with(accepted) : path == accepted;
  });
}

bool RestartPolicy::accepts_root() const { return everything || includes(users, 0); }

const std::vector<std::string>& capability_names() {
  static const std::vector<std::string> names = {"chown",
                                                 "dac_override",
                                                 "dac_read_search",
                                                 "fowner",
                                                 "fsetid",
                                                 "kill",
                                                 "setgid",
                                                 "setuid",
                                                 "setpcap",
                                                 "linux_immutable",
                                                 "net_bind_service",
                                                 "net_broadcast",
                                                 "net_admin",
                                                 "net_raw",
                                                 "ipc_lock",
                                                 "ipc_owner",
                                                 "sys_module",
                                                 "sys_rawio",
                                                 "sys_chroot",
                                                 "sys_ptrace",
                                                 "sys_pacct",
                                                 "sys_admin",
                                                 "sys_boot",
                                                 "sys_nice",
                                                 "sys_resource",
                                                 "sys_time",
                                                 "sys_tty_config",
                                                 "mknod",
                                                 "lease",
                                                 "audit_write",
                                                 "audit_control",
                                                 "setfcap",
                                                 "mac_override",
                                                 "mac_admin",
                                                 "syslog",
                                                 "wake_alarm",
                                                 "block_suspend",
                                                 "audit_read",
                                                 "perfmon",
                                                 "bpf",
                                                 "checkpoint_restore"};
  return names;
}

Result<RestartPolicy> parse_restart_policy(const json& json) {
  if (!json.is_object()) return failure(EINVAL, "not a JSON object: {\"users\": [\"alice\"]}");
  RestartPolicy policy;
  for (const auto& [key, value] : json.items()) {
    if (Status parsed = parse_key(key, value, policy); !parsed) return failure(parsed.error());
  }
  return policy;
}

Result<RestartPolicy> read_restart_policy(const std::string& path) {
  // Opening a FIFO without O_NONBLOCK would block.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_failure("open the restart policy", path);
  struct stat found {};
  if (fstat(file.get(), &found) != 0) return system_failure("read the attributes of", path);
  if (!S_ISREG(found.st_mode) || found.st_size > kFileMaxBytes) {
    return failure(EINVAL, "restart policy " + path + ": not a file of at most 1 MiB");
  }
  if ((found.st_uid != 0 && found.st_uid != geteuid()) || (found.st_mode & 022) != 0) {
    return failure(EPERM, fmt::format("restart policy {}: others can change it: chown root {}; "
                                      "chmod go-w {}",
                                      path, path, path));
  }
  auto text = read_whole_file(fmt::format("/proc/self/fd/{}", file.get()));
  if (!text) return failure(text.error());
  json parsed = json::parse(*text, nullptr, false);
  if (parsed.is_discarded()) return failure(EINVAL, "restart policy " + path + ": not JSON");
  if (parsed.is_object()) parsed.erase("file");
  auto policy = parse_restart_policy(parsed);
  if (!policy) {
    return failure(policy.error().errno_value,
                   "restart policy " + path + ": " + policy.error().message);
  }
  policy->file = path;
  return policy;
}

json to_json(const RestartPolicy& policy) {
  return {{"file", policy.file},
          {"everything", policy.everything},
          {"users", ranges_to_json(policy.users)},
          {"groups", ranges_to_json(policy.groups)},
          {"executables", policy.executables},
          {"roots", policy.roots},
          {"files", policy.files},
          {"bundles", policy.bundles},
          {"capabilities", policy.capabilities},
          {"namespaces", policy.namespaces},
          {"resources", policy.resources},
          {"criu_options", policy.criu_options}};
}

}  // namespace ppmr
