// Opens nothing in a ppmr mount, because the mount's daemon may be blocked on its peer.
#include "preflight/manager_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/unique_fd.h"
#include "mount/mount_table.h"
#include "preflight/shell_text.h"

namespace ppmr {
namespace {

constexpr size_t kScriptMaxBytes = 128 << 10;

const std::set<std::string_view> kManagers = {"runsv",
                                              "supervise",
                                              "s6-supervise",
                                              "supervise-daemo",  // cut by the kernel
                                              "supervisord",
                                              "conmon",
                                              "containerd-shim",
                                              "containerd-shim-r",
                                              "containerd-shim-runc-v2",
                                              "docker-init",
                                              "monit",
                                              "circusd",
                                              "god"};
const std::set<std::string_view> kWrappers = {
    "setsid", "sudo",  "su",        "runuser", "doas",      "timeout", "unshare",        "nsenter",
    "tini",   "flock", "dumb-init", "script",  "catatonit", "time",    "systemd-inhibit"};
const std::set<std::string_view> kNeutral = {
    "sshd",       "sshd-session", "login", "tmux: server", "tmux", "screen", "SCREEN",
    "slurmstepd", "ppmr",         "criu",  "runc",         "cron", "crond",  "atd"};

bool is_one_of(const std::set<std::string_view>& names, const Parent& parent) {
  return names.contains(parent.name) || names.contains(parent.program);
}

// "busybox sh -c ...", or a link "sh" to busybox.
bool runs_shell(const Parent& parent) {
  if (parent.program != "busybox") return is_shell(parent.program);
  for (size_t i = 0; i < 2 && i < parent.words.size(); ++i) {
    const std::string& word = parent.words[i];
    if (is_shell(std::string_view(word).substr(word.rfind('/') + 1))) return true;
  }
  return false;
}

// Returns the start of a regular file; empty if ppmr cannot or must not read it.
std::string read_start(const std::string& path, size_t size_max) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat found {};
  if (!fd || fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) return "";
  std::string text(size_max, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

// Returns the text of a shell's script; empty: unknown.
std::string read_script(const Parent& shell, const std::string& script) {
  std::string path = script;
  if (!path.starts_with('/')) {
    const auto directory = read_process_link(shell.pid, "cwd");
    if (!directory) return "";
    path = *directory + "/" + path;
  }
  if (find_mount(path)) return "";
  std::string text = read_start(fmt::format("/proc/{}/root{}", shell.pid, path), kScriptMaxBytes);
  return text.size() < kScriptMaxBytes ? text : "";
}

bool systemd_runs() {
  const auto first = read_process_stat(1);
  return first && first->name == "systemd" && access("/run/systemd/system", F_OK) == 0;
}

bool monit_runs() {
  const std::string text = read_start("/run/monit.pid", 32);
  const auto monit = read_process_stat(std::atoi(text.c_str()));
  return monit && monit->name == "monit";
}

// Returns the lines of a section of a configuration of supervisord, without comments, as
// "name=value" without spaces around the "=".
std::vector<std::string> lines_of_section(std::string_view text, const std::string& section) {
  std::vector<std::string> found;
  std::istringstream lines{std::string(text)};
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) inside = line.substr(0, line.find(']') + 1) == "[" + section + "]";
    if (!inside || line.starts_with(';') || line.starts_with('#')) continue;
    line.resize(std::min(line.find(" ;"), line.size()));
    const auto trimmed = [](const std::string& part) {
      const size_t first = part.find_first_not_of(" \t\r");
      return first == std::string::npos
                 ? std::string()
                 : part.substr(first, part.find_last_not_of(" \t\r") - first + 1);
    };
    const size_t equals = line.find_first_of("=:");
    if (equals == std::string::npos || line.front() == ' ' || line.front() == '\t') {
      // An indented line continues the previous value.
      if (!found.empty() && !trimmed(line).empty()) found.back() += " " + trimmed(line);
    } else {
      found.push_back(trimmed(line.substr(0, equals)) + "=" + trimmed(line.substr(equals + 1)));
    }
  }
  return found;
}

// Returns the texts of supervisord's configuration and of the files that it includes.
std::string read_supervisor_configuration(const Parent& supervisord) {
  std::vector<std::string> candidates = {"/etc/supervisord.conf",
                                         "/etc/supervisor/supervisord.conf"};
  for (size_t i = 0; i + 1 < supervisord.words.size(); ++i) {
    const std::string& word = supervisord.words[i];
    if (word == "-c" || word == "--configuration") candidates = {supervisord.words[i + 1]};
  }
  const auto directory = read_process_link(supervisord.pid, "cwd");
  for (std::string& path : candidates) {
    if (!path.starts_with('/') && directory) path.insert(0, *directory + "/");
    if (find_mount(path)) continue;
    std::string text = read_start(path, kScriptMaxBytes);
    if (text.empty()) continue;
    for (std::string pattern : find_includes(text)) {
      if (!pattern.starts_with('/')) pattern.insert(0, path.substr(0, path.rfind('/') + 1));
      if (find_mount(pattern)) continue;
      glob_t files{};
      if (glob(pattern.c_str(), 0, nullptr, &files) == 0) {
        for (size_t i = 0; i < files.gl_pathc; ++i)
          text += "\n" + read_start(files.gl_pathv[i], kScriptMaxBytes);
      }
      globfree(&files);
    }
    return text;
  }
  return "";
}

SupervisorProgram gather_supervisor_program(pid_t child, const Parent& supervisord) {
  const std::string environment = read_process_file(child, "environ").value_or("");
  SupervisorProgram program{.name = variable_in(environment, "SUPERVISOR_PROCESS_NAME")};
  if (program.name.empty()) return program;
  const std::string configuration = read_supervisor_configuration(supervisord);
  // A program without a group is its own group: the group has the name of the program, whatever
  // process_name= says.
  const std::string group = variable_in(environment, "SUPERVISOR_GROUP_NAME");
  program.autorestart = find_autorestart(configuration, group);
  if (program.autorestart.empty())
    program.autorestart = find_autorestart(configuration, program.name);
  return program;
}

}  // namespace

ParentKind kind_of(const Parent& parent) {
  if (is_one_of(kManagers, parent) || parent.name.starts_with("PM2 v")) return ParentKind::kManager;
  // The first process of a container may be a shell with a loop.
  if (runs_shell(parent)) return ParentKind::kShell;
  if (parent.pid == 1 || parent.name == "systemd") return ParentKind::kFirst;
  if (is_one_of(kWrappers, parent)) return ParentKind::kWrapper;
  return is_one_of(kNeutral, parent) ? ParentKind::kNeutral : ParentKind::kUnknown;
}

size_t count_passed(const std::vector<Parent>& parents) {
  size_t count = 0;
  for (const Parent& parent : parents) {
    const ParentKind kind = kind_of(parent);
    if (kind != ParentKind::kShell && kind != ParentKind::kWrapper) break;
    ++count;
  }
  return count;
}

std::vector<std::string> names_of(const std::string& name, const std::string& program,
                                  const std::vector<std::string>& words) {
  std::vector<std::string> names;
  const auto add = [&names](std::string text) {
    text = text.substr(text.rfind('/') + 1);
    const bool is_name =
        std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
    if (is_name && std::find(names.begin(), names.end(), text) == names.end())
      names.push_back(std::move(text));
  };
  add(name);
  add(program);
  if (!words.empty()) add(words[0]);
  // The script of an interpreter: "python3 /srv/web.py".
  if (words.size() > 1 && !words[1].starts_with('-') &&
      words[1].find_first_of("./") != words[1].npos)
    add(words[1]);
  return names;
}

std::optional<bool> parse_service_status(std::string_view bytes) {
  // daemontools: 18 bytes, runit: 20. Byte 17 is the wanted state of the service: 'u', 'd' or 0.
  // Source: supervise.c of daemontools, runsv.c of runit.
  if (bytes.size() == 18 || bytes.size() == 20) return bytes[17] == 'u';
  // s6: bit 2 of the last byte. Source: s6_svstatus_pack.c of s6.
  if (bytes.size() == 35 || bytes.size() == 43) return (bytes.back() & 4) != 0;
  return std::nullopt;
}

std::string variable_in(std::string_view environment, const std::string& variable) {
  for (const std::string& word : split_command_line(environment)) {
    if (word.starts_with(variable + "=")) return word.substr(variable.size() + 1);
  }
  return "";
}

std::string find_autorestart(std::string_view configuration, const std::string& program) {
  constexpr std::string_view kName = "autorestart=";
  std::string value;
  for (const std::string& line : lines_of_section(configuration, "program:" + program)) {
    if (line.starts_with(kName)) value = line.substr(kName.size());
  }
  return value;
}

std::vector<std::string> find_includes(std::string_view configuration) {
  std::vector<std::string> patterns;
  for (const std::string& line : lines_of_section(configuration, "include")) {
    if (!line.starts_with("files=")) continue;
    std::istringstream words(line.substr(6));
    for (std::string pattern; words >> pattern;) patterns.push_back(pattern);
  }
  return patterns;
}

ManagerFacts gather_manager_facts(const ProcessTree& tree) {
  ManagerFacts facts;
  const auto words = read_process_file(tree.root, "cmdline");
  const auto executable = read_process_link(tree.root, "exe");
  facts.root_names = names_of(tree.processes.front().name, executable.value_or(""),
                              words ? split_command_line(*words) : std::vector<std::string>());
  facts.parents = read_parents(tree.root);
  const size_t passed = count_passed(facts.parents);
  for (size_t i = 0; i < facts.parents.size() && i <= passed; ++i) {
    const Parent& parent = facts.parents[i];
    if (kind_of(parent) == ParentKind::kShell) {
      const ShellCall call = parse_shell_call(parent.words);
      if (!call.script.empty()) facts.scripts[parent.pid] = read_script(parent, call.script);
    }
    if (kind_of(parent) != ParentKind::kManager) continue;
    if (parent.name == "supervisord") {
      const pid_t child = i == 0 ? tree.root : facts.parents[i - 1].pid;
      facts.supervisor_program = gather_supervisor_program(child, parent);
    }
    const auto directory = read_process_link(parent.pid, "cwd");
    if (!directory || find_mount(*directory)) continue;
    const std::string status =
        read_start(fmt::format("/proc/{}/cwd/supervise/status", parent.pid), 64);
    facts.service_directories[parent.pid] = {*directory, parse_service_status(status)};
  }
  if (passed >= facts.parents.size()) return facts;
  if (kind_of(facts.parents[passed]) != ParentKind::kFirst) return facts;
  facts.monit_runs = monit_runs();
  if (facts.parents[passed].name != "systemd" || !systemd_runs()) return facts;
  const auto group = read_process_file(tree.root, "cgroup");
  const UnitName unit = find_unit(group.value_or(""));
  if (!unit.name.empty()) facts.unit = ask_unit(unit);
  return facts;
}

}  // namespace ppmr
