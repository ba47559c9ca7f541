#include "cli/doctor/service_checks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/clock.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "cli/screen/counted.h"
#include "daemon/background/program_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kCheckPatience{10'000};

constexpr const char* kToFile = "to.conf";

// Returns the command to which the file belongs; empty if the name does not show it.
std::string role_of(const std::string& file) {
  const fs::path path = fs::absolute(file);
  if (path.filename() == "target.conf") return "target";
  if (path.filename() == kToFile) return "source";
  const fs::path directory = path.parent_path().filename();
  return directory == "source.d" ? "source" : directory == "protect.d" ? "protect" : "";
}

// Returns the unit whose daemon uses this file; empty: no unit uses it.
std::string unit_of(const std::string& file) {
  if (fs::path(file).filename() == kToFile) return "";
  if (role_of(file) == "target") return "ppmr-target.service";
  return fmt::format("ppmr-{}@{}.service", role_of(file), fs::path(file).stem().string());
}

void take(const std::string& name, const std::string& value, Credentials& credentials,
          Configuration& found) {
  if (name == "key-file") credentials.key_file = value;
  if (name == "tls-cert") credentials.certificate.certificate = value;
  if (name == "tls-key") credentials.certificate.private_key = value;
  if (name == "tls-ca") credentials.certificate.authority = value;
  if (name == "crl") credentials.revocation_list = value;
  if (name == "spill-dir") found.spill_directories.push_back(value);
  if (name == "state-dir") found.state_directories.push_back(value);
}

void read_file(const std::string& path, Configuration& found,
               std::set<std::pair<std::string, std::string>>& known) {
  std::ifstream file(path);
  if (!file) return;
  Credentials credentials;
  std::string target;
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
      if (item.inputs.empty()) continue;
      take(item.name, item.inputs.front(), credentials, found);
      if (item.name == "target") target = item.inputs.front();
    }
  } catch (const CLI::Error&) {
    return;
  }
  const bool is_new =
      std::none_of(found.targets.begin(), found.targets.end(),
                   [&](const Configuration::Target& one) { return one.address == target; });
  if (!target.empty() && is_new) found.targets.push_back({target, credentials});
  if (known.emplace(credentials.key_file, credentials.certificate.certificate).second) {
    found.credentials.push_back(credentials);
  }
}

// Joins the lines of `text` into one, because a daemon's check prints one line for each fault.
std::string on_one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ';');
  return text;
}

void check_peers(const std::string& mountpoint, const json& status, Diagnoses& found) {
  for (const json& peer : status.value("peers", json::array())) {
    if (peer.value("connected", true)) continue;
    const std::string error = peer.value("error", "");
    found.push_back(warning(
        "mount",
        fmt::format("{} is not connected to {} {}{}", mountpoint, peer.value("name", ""),
                    peer.value("address", ""), error.empty() ? "" : ": " + error),
        "Run `ppmr doctor --target HOST:PORT` at the source, with the address of the target"));
  }
  for (const json& checkpoint : status.value("checkpoints", json::array())) {
    if (checkpoint.value("state", "") != "failed") continue;
    found.push_back(warning("mount",
                            fmt::format("the checkpoint {} in {} has failed: {}",
                                        json(checkpoint.value("name", "")).dump(), mountpoint,
                                        checkpoint.value("error", "")),
                            "Remove it with rm -r"));
  }
}

// Uses the expiry that the daemon reports. The files may be newer than what the daemon uses: it has
// read them at its start or at the last SIGHUP.
void check_end_of_credentials(const std::string& mountpoint, const json& status, Diagnoses& found) {
  const json end = status.value("credentials_end_s", json());
  if (!end.is_number_integer()) return;
  constexpr int64_t kSecondsPerDay = 86'400;
  constexpr int64_t kWarningDays = 30;
  const int64_t left_s = end.get<int64_t>() - realtime_ns() / 1'000'000'000;
  if (left_s >= kWarningDays * kSecondsPerDay) return;
  const std::string message = fmt::format(
      "a certificate or revocation list that the daemon of {} uses {}", mountpoint,
      left_s < 0 ? "has expired" : "expires in " + counted(left_s / kSecondsPerDay, "day"));
  const std::string remedy =
      "Issue new certificates at the same paths, and send SIGHUP to the daemon (`systemctl "
      "reload`)";
  found.push_back(left_s < 0 ? problem("mount", message, remedy)
                             : warning("mount", message, remedy));
}

void check_mount(const MountEntry& mount, Diagnoses& found) {
  auto status = call(mount.source, to_request(request::Status{}), kPatience);
  if (!status && status.error().errno_value == EACCES) {
    found.push_back(warning("mount",
                            fmt::format("the daemon of {} belongs to another user, so it was not "
                                        "asked",
                                        mount.mountpoint),
                            "Run ppmr doctor as that user, or as root"));
  } else if (!status && status.error().errno_value == ETIMEDOUT) {
    found.push_back(problem("mount",
                            fmt::format("the daemon of {} does not reply within a second: it is "
                                        "stopped or hangs, and so does every access to the mount",
                                        mount.mountpoint),
                            "Look at its log, then end it: its mount goes with it"));
  } else if (!status) {
    found.push_back(problem(
        "mount",
        fmt::format("{} is stale: its daemon has ended ({})", mount.mountpoint,
                    status.error().message),
        fmt::format("Start the daemon again, which replaces it, or run `fusermount3 -u -z {}`",
                    mount.mountpoint)));
  } else {
    const bool draining = status->value("draining", false);
    const std::string message =
        fmt::format("the {} in {} replies{}", status->value("role", "daemon"), mount.mountpoint,
                    draining ? ", but it is drained and begins nothing new" : "");
    found.push_back(draining ? warning("mount", message,
                                       fmt::format("Run `ppmr drain --resume {}` when it may begin "
                                                   "checkpoints again",
                                                   mount.mountpoint))
                             : ok("mount", message));
    if (const std::string old = describe_old_program(*status, kVersion); !old.empty()) {
      found.push_back(warning(
          "mount", fmt::format("the daemon of {} {}", mount.mountpoint, old),
          fmt::format("Run `ppmr drain {}`, then restart the daemon (`systemctl restart` its unit)",
                      mount.mountpoint)));
    }
    check_end_of_credentials(mount.mountpoint, *status, found);
    check_peers(mount.mountpoint, *status, found);
  }
}

}  // namespace

std::vector<std::string> configuration_files(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const char* each : {"target.conf", kToFile}) {
    const fs::path file = fs::path(directory) / each;
    if (fs::exists(file, error)) files.push_back(file.string());
  }
  for (const char* each : {"source.d", "protect.d"}) {
    for (const auto& entry :
         list_directory(fs::path(directory) / each).value_or(DirectoryEntries())) {
      if (entry.path().extension() == ".conf") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> check_arguments(const std::string& file) {
  const std::string role = role_of(file);
  if (role.empty()) return {};
  if (fs::path(file).filename() != kToFile) return {role, "--config", file, "--check"};
  // Adds the mount point and target that --to would add, because a source needs both. /run exists
  // on every node, and a check mounts nothing.
  return {role, "/run", "--target", "localhost:7440", "--config", file, "--check"};
}

Configuration read_configuration(const std::string& directory) {
  Configuration found;
  found.files = configuration_files(directory);
  std::set<std::pair<std::string, std::string>> known = {{"", ""}};
  for (const std::string& file : found.files) read_file(file, found, known);
  return found;
}

Diagnoses check_configuration(const Configuration& configuration, const std::string& directory,
                              const std::string& ppmr) {
  if (configuration.files.empty()) {
    return {ok("configuration",
               fmt::format("{} holds no configuration of a daemon, so there is none to check",
                           directory))};
  }
  Diagnoses found;
  for (const std::string& file : configuration.files) {
    std::vector<std::string> command = check_arguments(file);
    command.insert(command.begin(), ppmr);
    const auto checked = run_command(command, kCheckPatience);
    if (checked && checked->succeeded) {
      found.push_back(ok("configuration", file + " is good"));
    } else {
      found.push_back(
          problem("configuration",
                  fmt::format("{} is refused: {}", file,
                              checked ? on_one_line(checked->text) : checked.error().message),
                  fmt::format("Correct it, then run `ppmr config check {}`", file)));
    }
  }
  return found;
}

std::vector<UnitState> parse_units(const std::string& text) {
  std::vector<UnitState> units;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, load, active, detail;
    if (words >> name >> load >> active >> detail && name.ends_with(".service")) {
      units.push_back({name, active, detail});
    }
  }
  return units;
}

Diagnoses judge_units(const std::vector<UnitState>& units, const std::vector<std::string>& files) {
  Diagnoses found;
  std::set<std::string> known;
  for (const UnitState& unit : units) {
    known.insert(unit.name);
    if (unit.active == "active") {
      found.push_back(ok("unit", unit.name + " is active"));
    } else if (unit.active == "failed") {
      found.push_back(problem("unit", unit.name + " has failed",
                              fmt::format("Run `journalctl -u {}` to see why", unit.name)));
    } else if (unit.detail == "auto-restart") {
      found.push_back(
          problem("unit", fmt::format("{} ends, and systemd starts it again and again", unit.name),
                  fmt::format("Run `journalctl -u {}` to see why it ends", unit.name)));
    } else {
      found.push_back(
          warning("unit", fmt::format("{} is {}", unit.name, unit.active),
                  fmt::format("Run `systemctl enable --now {}` if it should run", unit.name)));
    }
  }
  for (const std::string& file : files) {
    const std::string unit = unit_of(file);
    if (unit.empty() || known.contains(unit)) continue;
    found.push_back(warning("unit",
                            fmt::format("{} is configured, but {} was never started", file, unit),
                            fmt::format("Run `systemctl enable --now {}` if it should run", unit)));
  }
  if (found.empty()) found.push_back(ok("unit", "systemd runs no ppmr daemon on this node"));
  return found;
}

Diagnoses check_units(const std::vector<std::string>& files, const std::string& root) {
  std::error_code error;
  if (!fs::exists(root + "/run/systemd/system", error)) {
    return {ok("unit", "systemd does not run this node, so there are no units to check")};
  }
  const auto listed = run_command(
      {"systemctl", "list-units", "--all", "--plain", "--no-legend", "ppmr-*"}, kCheckPatience);
  if (!listed || !listed->succeeded) {
    return {warning("unit",
                    "the units cannot be listed: " +
                        (listed ? on_one_line(listed->text) : listed.error().message),
                    "Run `systemctl status 'ppmr-*'`")};
  }
  return judge_units(parse_units(listed->text), files);
}

Diagnoses check_mounts(const std::vector<MountEntry>& mounts) {
  Diagnoses found;
  for (const MountEntry& mount : mounts) check_mount(mount, found);
  if (found.empty()) found.push_back(ok("mount", "there is no ppmr mount on this node now"));
  return found;
}

}  // namespace ppmr
