#include "preflight/container_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "preflight/file_digest.h"
#include "processes/process_tree.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr uint64_t kConfigMaxBytes = 16 << 20;
constexpr size_t kPathsMax = 10'000;
constexpr size_t kPathMaxBytes = 4096;

bool is_absolute_path(const std::string& path) {
  return path.starts_with('/') && path.size() <= kPathMaxBytes &&
         path.find('\0') == std::string::npos;
}

bool is_below(const std::string& path, const std::string& directory) {
  return directory == "/" || path == directory || path.starts_with(directory + "/");
}

std::string below(const std::string& directory, const std::string& path) {
  if (path.starts_with('/')) return path;
  return std::filesystem::path(directory + "/" + path).lexically_normal();
}

bool is_bind(const json& mount) {
  if (mount.value("type", "") == "bind") return true;
  for (const json& option : mount.value("options", json::array())) {
    if (option == "bind" || option == "rbind") return true;
  }
  return false;
}

Result<std::string> read_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return system_failure("open", path);
  std::string text;
  char buffer[16 << 10];
  for (;;) {
    const ssize_t size = read(fd.get(), buffer, sizeof(buffer));
    if (size < 0) return system_failure("read", path);
    if (size == 0) return text;
    text.append(buffer, static_cast<size_t>(size));
    if (text.size() > kConfigMaxBytes) return failure(EFBIG, path + " is longer than 16 MiB");
  }
}

// Returns the digest of the parts of config.json that must be equal on both nodes. Leaves out the
// control group: it belongs to the node, and a scheduler may choose it.
Result<std::string> digest_of_config(const std::string& text) {
  json config = json::parse(text, nullptr, false);
  if (config.is_object() && config.contains("linux") && config["linux"].is_object()) {
    config["linux"].erase("cgroupsPath");
  }
  return digest_of(config.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

std::optional<std::string> BundleFacts::host_path(const std::string& path) const {
  const Mount* closest = nullptr;
  for (const Mount& mount : mounts) {
    if (!is_below(path, mount.destination)) continue;
    if (closest == nullptr || mount.destination.size() >= closest->destination.size()) {
      closest = &mount;
    }
  }
  if (closest == nullptr) return path == "/" ? root_file_system : root_file_system + path;
  if (closest->source.empty()) return std::nullopt;
  return closest->source + path.substr(closest->destination.size());
}

std::vector<std::string> BundleFacts::needed_paths() const {
  std::vector<std::string> paths = {root_file_system};
  for (const Mount& mount : mounts) {
    if (!mount.source.empty()) paths.push_back(mount.source);
  }
  paths.insert(paths.end(), namespaces.begin(), namespaces.end());
  return paths;
}

std::vector<std::string> BundleFacts::needed_interfaces() const {
  if (!port.exists()) return {};
  return {port.interface, port.bridge};
}

Result<BundleFacts> parse_bundle(const std::string& config, const std::string& directory) {
  const json parsed = json::parse(config, nullptr, false);
  const std::string path = directory + "/config.json";
  try {
    BundleFacts bundle{.directory = directory};
    bundle.root_file_system = below(directory, parsed.at("root").at("path"));
    bundle.terminal = parsed.at("process").value("terminal", false);
    for (const json& mount : parsed.value("mounts", json::array())) {
      std::string source;
      if (is_bind(mount)) source = below(directory, mount.at("source"));
      bundle.mounts.push_back({mount.at("destination"), source});
    }
    const json platform = parsed.value("linux", json::object());
    for (const json& entry : platform.value("namespaces", json::array())) {
      const std::string joined = entry.value("path", "");
      if (!joined.empty()) bundle.namespaces.push_back(joined);
    }
    auto port = parse_container_port(config);
    if (!port) return failure(port.error().errno_value, path + ": " + port.error().message);
    bundle.port = std::move(*port);
    return bundle;
  } catch (const json::exception& error) {
    return failure(EPROTO, "cannot parse " + path + ": " + error.what());
  }
}

Result<BundleFacts> read_bundle(const std::string& directory) {
  auto config = read_config(directory);
  if (!config) return failure(config.error());
  auto bundle = parse_bundle(*config, directory);
  if (!bundle) return bundle;
  auto digest = digest_of_config(*config);
  if (!digest) return failure(digest.error());
  bundle->config_digest = *digest;
  return bundle;
}

bool has_unified_cgroups() {
  struct statfs found {};
  return statfs("/sys/fs/cgroup", &found) == 0 && found.f_type == CGROUP2_SUPER_MAGIC;
}

Result<ContainerFacts> gather_container_facts(const std::string& name) {
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto version = runc->version();
  if (!version) return failure(version.error());
  auto state = runc->state(name);
  if (!state) return failure(state.error());
  ContainerFacts facts{.state = *state, .runc_version = *version};
  facts.unified_cgroups = has_unified_cgroups();
  auto bundle = read_bundle(state->bundle);
  if (!bundle) return failure(bundle.error());
  facts.bundle = std::move(*bundle);
  if (state->pid <= 0) return facts;
  const auto processes = runc->processes(name);
  if (!processes) return failure(processes.error());
  const auto table = read_process_table();
  if (!table) return failure(table.error());
  for (const pid_t pid : *processes) {
    // A process that is not in the table has ended.
    if (pid == state->pid || !table->contains(pid)) continue;
    const auto above = ancestors_of(*table, pid);
    if (std::find(above.begin(), above.end(), state->pid) == above.end()) {
      facts.exec_processes.push_back(pid);
    }
  }
  return facts;
}

ContainerQuestion make_question(const ContainerFacts& container) {
  return {container.state.name, container.bundle.directory, container.bundle.config_digest,
          container.bundle.needed_paths(), container.bundle.needed_interfaces()};
}

Result<ContainerAnswer> answer_question(const ContainerQuestion& question) {
  if (!is_container_name(question.name)) {
    return failure(EINVAL, "invalid request: '" + question.name + "' is not a container name");
  }
  if (!is_absolute_path(question.bundle) || question.paths.size() > kPathsMax ||
      !std::all_of(question.paths.begin(), question.paths.end(), is_absolute_path) ||
      question.interfaces.size() > 2) {
    return failure(EINVAL, "invalid request: container " + question.name +
                               " has an invalid bundle, path or interface");
  }
  ContainerAnswer answer;
  answer.unified_cgroups = has_unified_cgroups();
  for (const std::string& path : question.paths) {
    if (access(path.c_str(), F_OK) != 0) answer.paths_missing.push_back(path);
  }
  for (const std::string& name : question.interfaces) {
    if (if_nametoindex(name.c_str()) == 0) answer.interfaces_missing.push_back(name);
  }
  const auto config = read_config(question.bundle);
  if (const auto digest = config ? digest_of_config(*config) : config) {
    answer.bundle =
        *digest == question.config_digest ? BundleVerdict::kSame : BundleVerdict::kOther;
  }
  const auto runc = Runc::find();
  const auto version = runc ? runc->version() : Result<std::string>(failure(runc.error()));
  if (!version) {
    answer.runc_problem = version.error().message;
    return answer;
  }
  answer.runc_version = *version;
  const auto state = runc->state(question.name);
  if (!state && state.error().errno_value != ENOENT) answer.runc_problem = state.error().message;
  answer.name_taken = state || runc->has_directory(question.name);
  return answer;
}

}  // namespace ppmr
