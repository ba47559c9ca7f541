// Rejected: the D-Bus interface of systemd. It needs a library, and `systemctl show` promises a
// stable output.
#include "preflight/systemd_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/whole_file.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr size_t kTriggersMax = 32;

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// systemd.unit(5) lists the characters. Other names come from a process that makes its own control
// groups.
bool is_unit_name(std::string_view name) {
  return !name.empty() && name.size() < 256 && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
                  std::string_view(":-_.\\@").find(c) != std::string_view::npos;
         });
}

// Removes the first name of the path, and returns it. systemd puts "_" before a name that would
// collide with a file of the control group.
std::string take_name(std::string_view& path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  std::string_view name = path.substr(0, path.find('/'));
  path.remove_prefix(name.size());
  if (name.starts_with('_')) name.remove_prefix(1);
  return std::string(name);
}

std::string take_unit(std::string_view& path) {
  std::string name = take_name(path);
  while (name.ends_with(".slice")) name = take_name(path);
  return name;
}

UnitName unit_in(std::string_view path) {
  UnitName unit{.name = take_unit(path)};
  if (unit.name.starts_with("user@") && !path.empty()) {
    const std::string uid = unit.name.substr(5);
    const auto [end, error] = std::from_chars(uid.data(), uid.data() + uid.size(), unit.uid);
    if (error != std::errc() || std::string_view(end) != ".service") return {};
    unit.of_user = true;
    unit.name = take_unit(path);
  }
  return is_service_name(unit.name) ? unit : UnitName{};
}

std::vector<std::string> systemctl(const UnitName& unit, const std::string& properties,
                                   const std::vector<std::string>& names) {
  std::vector<std::string> argv;
  if (unit.of_user) {
    argv = {"env", fmt::format("XDG_RUNTIME_DIR=/run/user/{}", unit.uid), "systemctl", "--user"};
  } else {
    argv = {"systemctl"};
  }
  argv.insert(argv.end(), {"show", "--no-pager", "--property=" + properties, "--"});
  argv.insert(argv.end(), names.begin(), names.end());
  return argv;
}

}  // namespace

bool is_service_name(std::string_view name) {
  return name.ends_with(".service") && is_unit_name(name);
}

UnitName find_unit(std::string_view cgroup_text) {
  // "0::PATH" is version 2, and "1:name=systemd:PATH" is systemd's hierarchy of version 1.
  UnitName unit;
  std::istringstream lines{std::string(cgroup_text)};
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view which : {":name=systemd:", "0::"}) {
      const size_t at = line.find(which);
      if (at == std::string::npos || (which == "0::" && at != 0)) continue;
      if (unit.name.empty()) unit = unit_in(std::string_view(line).substr(at + which.size()));
    }
  }
  return unit;
}

UnitRestart judge_restart(const UnitFacts& facts, bool main_is_moved) {
  const std::string& restart = facts.restart;
  if (!facts.problem.empty()) return UnitRestart::kPerhaps;
  // An inactive or stopping service stays down.
  if (facts.active_state != "active" && facts.active_state != "reloading" &&
      facts.active_state != "activating")
    return UnitRestart::kNo;
  if (!main_is_moved) {
    if (restart == "always") return UnitRestart::kSurely;
    return restart == "no" && facts.forces.empty() ? UnitRestart::kNo : UnitRestart::kPerhaps;
  }
  if (contains(facts.prevents, "KILL")) return UnitRestart::kNo;
  if (contains(facts.forces, "KILL") || restart == "always") return UnitRestart::kSurely;
  const bool is_success = contains(facts.successes, "KILL");
  if (restart == "on-success") return is_success ? UnitRestart::kSurely : UnitRestart::kNo;
  if (restart == "on-failure" || restart == "on-abnormal" || restart == "on-abort")
    return is_success ? UnitRestart::kNo : UnitRestart::kSurely;
  return restart == "no" || restart == "on-watchdog" ? UnitRestart::kNo : UnitRestart::kPerhaps;
}

void parse_unit_properties(std::string_view text, UnitFacts& facts) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals), value = line.substr(equals + 1);
    if (name == "MainPID")
      std::from_chars(value.data(), value.data() + value.size(), facts.main_pid);
    if (name == "ActiveState") facts.active_state = value;
    if (name == "ControlGroup") facts.control_group = value;
    if (name == "Restart") facts.restart = value;
    if (name == "UnitFileState") facts.file_state = value;
    if (name == "RestartPreventExitStatus") facts.prevents = words_of(value);
    if (name == "RestartForceExitStatus") facts.forces = words_of(value);
    if (name == "SuccessExitStatus") facts.successes = words_of(value);
    if (name != "TriggeredBy" && name != "UpheldBy") continue;
    for (std::string& unit : words_of(value)) {
      if (is_unit_name(unit) && facts.triggers.size() < kTriggersMax)
        facts.triggers.push_back(std::move(unit));
    }
  }
}

std::vector<std::string> parse_active_units(std::string_view text) {
  std::vector<std::string> active;
  std::istringstream lines{std::string(text)};
  std::string id;
  bool is_active = false;
  const auto end_unit = [&] {
    if (is_active && is_unit_name(id)) active.push_back(id);
    id.clear();
    is_active = false;
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) end_unit();
    if (line.starts_with("Id=")) id = line.substr(3);
    if (line.starts_with("ActiveState="))
      is_active = line != "ActiveState=inactive" && line != "ActiveState=failed";
  }
  end_unit();
  return active;
}

std::vector<pid_t> members_of_control_group(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<pid_t> members;
  if (path.empty() || path == "/") return members;
  // The mount points of version 2 alone, of version 2 beside version 1, and of version 1.
  for (const std::string top :
       {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"}) {
    std::error_code error;
    if (!fs::exists(top + path + "/cgroup.procs", error)) continue;
    std::vector<fs::path> groups = {top + path};
    // Other groups may end meanwhile, so a group that cannot be listed has no groups below it.
    for (size_t i = 0; i < groups.size(); ++i) {
      for (const auto& entry : list_directory(groups[i]).value_or(DirectoryEntries())) {
        if (entry.is_directory(error)) groups.push_back(entry.path());
      }
    }
    for (const fs::path& group : groups) {
      std::ifstream file(group / "cgroup.procs");
      for (pid_t pid = 0; file >> pid;) {
        if (pid != 0) members.push_back(pid);  // 0: the process is in another pid namespace
      }
    }
    break;
  }
  return members;
}

UnitFacts ask_unit(const UnitName& unit) {
  UnitFacts facts{.unit = unit};
  const auto said = run_successfully(
      systemctl(unit,
                "MainPID,ActiveState,ControlGroup,Restart,UnitFileState,TriggeredBy,UpheldBy,"
                "RestartPreventExitStatus,RestartForceExitStatus,SuccessExitStatus",
                {unit.name}),
      kPatience);
  if (!said) {
    facts.problem = said.error().message;
    return facts;
  }
  parse_unit_properties(*said, facts);
  if (facts.restart.empty()) facts.problem = "systemctl show printed no Restart=";
  if (facts.triggers.empty()) return facts;
  const auto states =
      run_successfully(systemctl(unit, "Id,ActiveState", facts.triggers), kPatience);
  // Without an answer the triggers count as active.
  if (states) facts.triggers = parse_active_units(*states);
  return facts;
}

}  // namespace ppmr
