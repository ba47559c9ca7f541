// A command decides under a lock for each target whether the daemon runs or must be started. So two
// commands do not start two daemons. A daemon that is about to end refuses to stay. The command
// then starts a new daemon after the old one has ended.
#include "daemon/control/target_mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/spawn.h"
#include "base/unique_fd.h"
#include "daemon/command_line/output.h"
#include "daemon/control/control_client.h"
#include "daemon/control/endpoint_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

constexpr const char* kMounts = "/run/ppmr/to";
constexpr const char* kConfigOption = "--config";
constexpr size_t kHostMaxBytes = 253;  // the longest name in DNS
constexpr size_t kSaidMaxBytes = 4096;
constexpr std::chrono::seconds kEndPatience{10};

tl::unexpected<CommandError> failed(ExitCode code, const TargetHost& host, const std::string& why) {
  return command_failure(code, fmt::format("--to {}: {}", host.address, why));
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return system_failure("make the directory", path);
}

// Opens and locks the file, which it creates if necessary. Errors: those of open(2) and flock(2).
Result<UniqueFd> lock(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return system_failure("open", path);
  while (::flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return system_failure("lock", path);
  }
  return file;
}

std::optional<MountEntry> mount_at(const std::string& mountpoint) {
  auto found = find_mount(mountpoint);
  if (!found || !found->remainder.empty() || found->mount.mountpoint != mountpoint) return {};
  return std::move(found->mount);
}

// Returns whether a daemon serves the mount and stays. If the daemon is about to end, waits for its
// end.
CommandResult<bool> is_served(const TargetHost& host) {
  const auto mount = mount_at(host.mountpoint);
  if (!mount) return false;
  const auto answer = call(mount->source, to_request(request::Stay{}), kDaemonPatience);
  if (!answer) {
    const int code = answer.error().errno_value;
    if (code == ECONNREFUSED || code == ENOENT || code == ENODATA) return false;
    return failed(ExitCode::kDaemonSilent, host, answer.error().message);
  }
  const auto stays = accepted(*answer);
  if (!stays && stays.error().errno_value == ESHUTDOWN) {
    const auto end = std::chrono::steady_clock::now() + kEndPatience;
    while (mount_at(host.mountpoint) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  const auto endpoint = read_endpoint(mount->source);
  if (!endpoint) return failed(ExitCode::kFailure, host, endpoint.error().message);
  if (const std::string target = endpoint->value("target", ""); target != host.address) {
    return failed(ExitCode::kUsage, host,
                  fmt::format("the mount at {} sends to {}: unmount it", host.mountpoint,
                              target.empty() ? "no target" : target));
  }
  return true;
}

std::string read_bounded(int from) {
  std::string text(kSaidMaxBytes, '\0');
  size_t length = 0;
  for (;;) {
    char rest[512];
    const bool full = length == text.size();
    const ssize_t got = full ? ::read(from, rest, sizeof rest)
                             : ::read(from, text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (!full) length += static_cast<size_t>(got);
  }
  text.resize(length);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

CommandResult<std::vector<std::string>> credentials(const TargetHost& host,
                                                    const std::string& key_file) {
  using Words = std::vector<std::string>;
  if (!key_file.empty()) return Words{"--key-file", key_file};
  if (::access(kTargetMountConfig, F_OK) == 0) return Words{kConfigOption, kTargetMountConfig};
  if (::access(kClusterKey, F_OK) == 0) return Words{"--key-file", kClusterKey};
  return failed(ExitCode::kUsage, host,
                fmt::format("there is no {0}: make it with `ppmr keygen {0}` on one node and copy "
                            "it to the others (scp -p), or name another with --key-file",
                            kClusterKey));
}

// Prints the warnings and errors in the log of a daemon that has started.
void print_warnings(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" info: ") == std::string::npos) print_to(stderr, "{}\n", line);
  }
}

// Starts the daemon, and waits until its parent process ends. This process prints the daemon's
// report before it ends, with the exit code of the report.
CommandResult<void> start_daemon(const TargetHost& host, const TargetMountOptions& wanted) {
  auto words = credentials(host, wanted.key_file);
  if (!words) return tl::unexpected(words.error());
  SpawnOptions options{
      .argv = {"ppmr", "source", host.mountpoint, "--target", host.address, "--idle-timeout",
               std::to_string(kStaySeconds), "--state-dir", wanted.state_directory},
      .program = "/proc/self/exe",
      .files = {}};
  options.argv.insert(options.argv.end(), words->begin(), words->end());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return failed(ExitCode::kFailure, host, std::string("pipe: ") + std::strerror(errno));
  }
  const UniqueFd said(ends[0]);
  UniqueFd saying(ends[1]);
  options.files = {{saying.get(), STDERR_FILENO}};
  const auto started = spawn(options);
  saying.reset();
  if (!started) return failed(ExitCode::kFailure, host, started.error().message);
  const std::string text = read_bounded(said.get());
  int status = 0;
  while (::waitpid(*started, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    print_warnings(text);
    return {};
  }
  const auto code = WIFEXITED(status) ? ExitCode{WEXITSTATUS(status)} : ExitCode::kFailure;
  return failed(code, host, start_error(text, words->front() == kConfigOption, code));
}

}  // namespace

std::string start_error(const std::string& said, bool has_config_file, ExitCode code) {
  std::istringstream lines(said);
  std::string error;
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view name : {"ppmr source: ", "ppmr: "}) {
      if (line.starts_with(name)) line.erase(0, name.size());
    }
    if (line.starts_with("exit status ")) continue;
    error += (error.empty() ? "" : "\n") + line;
  }
  if (error.empty()) error = "the daemon of the source mount did not start";
  if (!has_config_file) return error;
  if (code == ExitCode::kUsage) {
    return fmt::format("{}\ncorrect {}: options of ppmr source, without target and mountpoint",
                       error, kTargetMountConfig);
  }
  return fmt::format("{} (its options are in {})", error, kTargetMountConfig);
}

Result<TargetHost> parse_target_host(const std::string& text) {
  const auto refuse = [&] {
    return failure(EINVAL, "'" + text + "': must be HOST, HOST:PORT or [IPV6]:PORT");
  };
  std::string name = text;
  std::string port = kTargetPort;
  const bool is_bracketed = name.starts_with('[');
  const size_t colons = static_cast<size_t>(std::count(name.begin(), name.end(), ':'));
  if (is_bracketed) {
    const size_t end = name.find(']');
    if (end == std::string::npos) return refuse();
    const std::string rest = name.substr(end + 1);
    name = name.substr(1, end - 1);
    if (!rest.empty() && !rest.starts_with(':')) return refuse();
    if (!rest.empty()) port = rest.substr(1);
  } else if (colons == 1) {
    port = name.substr(name.find(':') + 1);
    name.resize(name.find(':'));
  }
  const bool is_v6 = is_bracketed || colons > 1;
  const std::string more = is_v6 ? ":%" : "";
  const auto is_allowed = [&](unsigned char letter) {
    return std::isalnum(letter) != 0 || strchr("-._", letter) != nullptr ||
           more.find(static_cast<char>(letter)) != std::string::npos;
  };
  if (name.empty() || name.size() > kHostMaxBytes || name.front() == '.' || name.front() == '-' ||
      !std::all_of(name.begin(), name.end(), is_allowed)) {
    return refuse();
  }
  const bool is_number = !port.empty() && port.size() <= 5 &&
                         port.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoul(port) == 0 || std::stoul(port) > 65535) return refuse();
  const std::string host = is_v6 ? "[" + name + "]" : name;
  return TargetHost{
      .address = host + ":" + port,
      .mountpoint = fmt::format("{}/{}{}", kMounts, name,
                                port == kTargetPort ? "" : (is_v6 ? "," : ":") + port)};
}

CommandResult<void> make_target_mount(const TargetHost& host, const TargetMountOptions& options) {
  for (const std::string& path : {std::string("/run/ppmr"), std::string(kMounts)}) {
    if (auto made = make_directory(path); !made) {
      return failed(ExitCode::kMountFailed, host, made.error().message);
    }
  }
  const std::string name = host.mountpoint.substr(host.mountpoint.rfind('/') + 1);
  const auto alone = lock(fmt::format("{}/.{}", kMounts, name));
  if (!alone) return failed(ExitCode::kMountFailed, host, alone.error().message);
  const auto served = is_served(host);
  if (!served) return tl::unexpected(served.error());
  if (*served) return {};
  if (auto made = make_directory(host.mountpoint); !made) {
    return failed(ExitCode::kMountFailed, host, made.error().message);
  }
  return start_daemon(host, options);
}

}  // namespace ppmr
