#include "restart_loader/containers/runc.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mount/mount_table.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatience{15};
constexpr const char* kRuncRoot = "/run/runc";  // the default of runc for root

struct RuncOption {
  std::string_view criu;
  std::string_view runc;
  bool has_value;
};
constexpr std::array kRuncOptions = {
    RuncOption{"--tcp-established", "--tcp-established", false},
    RuncOption{"--ext-unix-sk", "--ext-unix-sk", false},
    RuncOption{"--shell-job", "--shell-job", false},
    RuncOption{"--file-locks", "--file-locks", false},
    RuncOption{"--manage-cgroups", "--manage-cgroups-mode", true},
    // runc_configuration() returns these.
    RuncOption{"--ghost-limit", "", true},
    RuncOption{"--tcp-close", "", false},
};

std::string path_variable() {
  const char* path = std::getenv("PATH");
  return path != nullptr && path[0] != 0 ? path : "/usr/sbin:/usr/bin:/sbin:/bin";
}

// Returns the text of runc's "level=error msg=\"...\"". If there is none, returns the whole output.
std::string reason_in(const std::string& output) {
  constexpr std::string_view kBefore = "msg=\"";
  const size_t at = output.rfind(kBefore);
  std::string text = at == std::string::npos ? output : output.substr(at + kBefore.size());
  while (!text.empty() && (text.back() == '\n' || text.back() == '"')) text.pop_back();
  return text.empty() ? "it printed no reason" : text;
}

}  // namespace

Result<Runc> Runc::find() {
  const std::string path = path_variable() + ":/usr/sbin:/usr/local/sbin";
  for (size_t start = 0; start < path.size();) {
    const size_t colon = std::min(path.find(':', start), path.size());
    const std::string candidate = path.substr(start, colon - start) + "/runc";
    if (candidate[0] == '/' && access(candidate.c_str(), X_OK) == 0) return Runc(candidate);
    start = colon + 1;
  }
  return failure(ENOENT, "no runc found in PATH: install Debian's runc");
}

Result<std::string> Runc::run(const std::vector<std::string>& words) const {
  std::vector<std::string> argv = {path_};
  argv.insert(argv.end(), words.begin(), words.end());
  auto output = run_command(argv, kPatience);
  if (!output) return failure(output.error());
  if (output->succeeded) return output->text;
  return failure(ECHILD,
                 fmt::format("runc {}: {}", fmt::join(words, " "), reason_in(output->text)));
}

Result<std::string> Runc::version() const {
  auto output = run({"--version"});
  if (!output) return output;
  constexpr std::string_view kBefore = "runc version ";
  const size_t at = output->find(kBefore);
  if (at == std::string::npos)
    return failure(EPROTO, "cannot parse the output of " + path_ + " --version");
  const size_t begin = at + kBefore.size();
  return output->substr(begin, output->find_first_of(" \n", begin) - begin);
}

Result<ContainerState> Runc::state(const std::string& name) const {
  if (!is_container_name(name))
    return failure(EINVAL, "'" + name + "' is not a valid container name");
  auto output = run({"state", name});
  if (!output && output.error().message.find("does not exist") != std::string::npos) {
    return failure(ENOENT, "runc has no container " + name + ": `runc list` shows those it has");
  }
  if (!output) return failure(output.error());
  return parse_container_state(*output);
}

bool Runc::has_directory(const std::string& name) const {
  return access(fmt::format("{}/{}", kRuncRoot, name).c_str(), F_OK) == 0;
}

Result<std::vector<std::string>> Runc::list() const {
  auto output = run({"list", "--quiet"});
  if (!output) return failure(output.error());
  std::istringstream lines(*output);
  std::vector<std::string> names;
  for (std::string name; std::getline(lines, name);) names.push_back(name);
  return names;
}

Result<std::vector<pid_t>> Runc::processes(const std::string& name) const {
  auto output = run({"ps", "--format", "json", name});
  if (!output) return failure(output.error());
  const json pids = json::parse(*output, nullptr, false);
  std::vector<pid_t> found;
  if (!pids.is_array())
    return failure(EPROTO, "cannot parse the output of runc ps (version mismatch?)");
  for (const json& pid : pids) {
    if (!pid.is_number_integer())
      return failure(EPROTO, "cannot parse a pid in the output of runc ps");
    found.push_back(pid.get<pid_t>());
  }
  return found;
}

Status Runc::resume(const std::string& name) const {
  auto output = run({"resume", name});
  if (!output) return failure(output.error());
  return {};
}

Status Runc::remove(const std::string& name) const {
  if (!is_container_name(name))
    return failure(EINVAL, "'" + name + "' is not a valid container name");
  if (Status safe = check_mounts(name); !safe) return safe;
  auto output = run({"delete", "--force", name});
  if (output) return {};
  // Another process may have removed the container in the meantime.
  const auto left = state(name);
  if (!left && left.error().errno_value == ENOENT) return {};
  return failure(output.error());
}

// `runc delete` removes all files below runc's directory for the container. If a file system is
// mounted below that directory, the files of that file system are removed, too.
Status Runc::check_mounts(const std::string& name) const {
  const std::string directory = fmt::format("{}/{}/", kRuncRoot, name);
  auto mounts = read_mounts();
  if (!mounts) return failure(mounts.error());
  for (const MountEntry& mount : *mounts) {
    if (!mount.mountpoint.starts_with(directory)) continue;
    return failure(EBUSY, fmt::format("cannot remove the container {}: runc delete would delete "
                                      "the files of the file system that is mounted at {}; unmount "
                                      "that file system first",
                                      name, mount.mountpoint));
  }
  return {};
}

// During a restore runc mounts the container's root file system in runc's directory for the
// container. If runc were killed, that mount would stay, and the next `runc delete` would delete
// the root file system. Therefore runc gets its own mount namespace: the mount ends with runc and
// CRIU.
std::vector<std::string> Runc::restore_command(const std::string& directory,
                                               const std::vector<std::string>& words) const {
  std::vector<std::string> argv = {"unshare", "--mount", "--propagation", "slave"};
  const auto runc = command(directory, words);
  argv.insert(argv.end(), runc.begin(), runc.end());
  return argv;
}

std::vector<std::string> Runc::command(const std::string& directory,
                                       const std::vector<std::string>& words) const {
  std::vector<std::string> argv = {"env", "PATH=" + directory + ":" + path_variable(), path_};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

Result<std::vector<std::string>> runc_options(const std::vector<std::string>& criu_options) {
  std::vector<std::string> words;
  for (const std::string& option : criu_options) {
    const size_t equals = std::min(option.find('='), option.size());
    const std::string name = option.substr(0, equals);
    const auto known = std::find_if(kRuncOptions.begin(), kRuncOptions.end(),
                                    [&](const RuncOption& entry) { return entry.criu == name; });
    const bool has_value = equals < option.size();
    if (known == kRuncOptions.end() || has_value != known->has_value) {
      return failure(EINVAL, "option '" + option +
                                 "' is not available with --runc: runc passes on only "
                                 "--tcp-established, --tcp-close, --ext-unix-sk, --shell-job, "
                                 "--file-locks, --manage-cgroups=MODE and --ghost-limit=SIZE");
    }
    if (known->runc.empty()) continue;
    words.emplace_back(known->runc);
    if (has_value) words.push_back(option.substr(equals + 1));
  }
  return words;
}

std::string runc_configuration(const std::vector<std::string>& criu_options) {
  std::string text;
  for (const std::string& option : criu_options) {
    if (option.starts_with("--ghost-limit=") || option == "--tcp-close")
      text += option.substr(2) + "\n";
  }
  return text;
}

Result<ContainerState> parse_container_state(const std::string& text) {
  const json parsed = json::parse(text, nullptr, false);
  try {
    ContainerState state;
    state.name = parsed.at("id");
    state.status = parsed.at("status");
    state.pid = parsed.at("pid");
    state.bundle = parsed.at("bundle");
    state.root_file_system = parsed.at("rootfs");
    state.created = parsed.at("created");
    return state;
  } catch (const json::exception& error) {
    return failure(
        EPROTO,
        std::string("cannot parse the output of runc state (version mismatch?): ") + error.what());
  }
}

}  // namespace ppmr
