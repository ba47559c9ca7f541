#include "processes/control_groups.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream{std::string(text)};
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

// The kernel writes a blank in a path as "\040".
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_octal = text[i] == '\\' && i + 3 < text.size() &&
                          std::all_of(text.begin() + static_cast<ptrdiff_t>(i) + 1,
                                      text.begin() + static_cast<ptrdiff_t>(i) + 4,
                                      [](char c) { return c >= '0' && c <= '7'; });
    if (!is_octal) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
    i += 3;
  }
  return plain;
}

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct GroupMount {
  std::string root;  // the group that the mount shows at its mount point
  std::string mountpoint;
  bool is_unified = false;
  std::vector<std::string> options;
};

// A line: "36 35 98:0 ROOT MOUNTPOINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS".
std::vector<GroupMount> parse_group_mounts(std::string_view mountinfo) {
  std::vector<GroupMount> mounts;
  for (const std::string& line : split(mountinfo, '\n')) {
    const auto words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string& type = *(dash + 1);
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back(
        {unescaped(words[3]), unescaped(words[4]), type == "cgroup2", split(*(dash + 3), ',')});
  }
  return mounts;
}

// Returns the part of `path` below `root`: "/a/b" below "/a" is "/b". nullopt: it is not below.
std::optional<std::string> below(const std::string& root, const std::string& path) {
  if (root == "/") return path == "/" ? "" : path;
  if (!path.starts_with(root)) return std::nullopt;
  if (path.size() > root.size() && path[root.size()] != '/') return std::nullopt;
  return path.substr(root.size());
}

}  // namespace

bool GroupDirectory::has(std::string_view controller) const {
  return std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
}

std::vector<GroupDirectory> find_group_directories(std::string_view groups,
                                                   std::string_view mountinfo) {
  const auto mounts = parse_group_mounts(mountinfo);
  std::vector<GroupDirectory> directories;
  // A line of version 1: "6:freezer,cpu:/path". The line of version 2: "0::/path".
  for (const std::string& line : split(groups, '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers =
        split(std::string_view(line).substr(first + 1, second - first - 1), ',');
    const std::string group = line.substr(second + 1);
    if (group.find("/..") != std::string::npos) continue;  // outside of this cgroup namespace
    for (const GroupMount& mount : mounts) {
      const bool fits =
          controllers.empty()
              ? mount.is_unified
              : !mount.is_unified && std::find(mount.options.begin(), mount.options.end(),
                                               controllers.front()) != mount.options.end();
      const auto rest = fits ? below(mount.root, group) : std::nullopt;
      if (!rest) continue;
      directories.push_back(
          {mount.mountpoint, mount.mountpoint + *rest, mount.is_unified, controllers});
      break;
    }
  }
  return directories;
}

Result<GroupDirectory> unified_group_of(pid_t pid) {
  const auto groups = read_process_file(pid, "cgroup");
  const auto mounts = read_process_file(getpid(), "mountinfo");
  if (!groups) return failure(groups.error());
  if (!mounts) return failure(mounts.error());
  for (GroupDirectory& directory : find_group_directories(*groups, *mounts)) {
    if (directory.is_unified) return std::move(directory);
  }
  return failure(ENOTSUP, "process " + std::to_string(pid) +
                              " has no control group of version 2 that is visible here");
}

std::optional<std::string> find_freezer(const std::vector<GroupDirectory>& directories) {
  for (const GroupDirectory& directory : directories) {
    if (!directory.is_unified && !directory.has("freezer")) continue;
    std::string path = directory.path;
    while (path.size() >= directory.mountpoint.size()) {
      const std::string file = path + (directory.is_unified ? "/cgroup.freeze" : "/freezer.state");
      const bool is_frozen = directory.is_unified
                                 ? first_line_of(file) == "1"
                                 : first_line_of(path + "/freezer.self_freezing") == "1";
      if (is_frozen) return file;
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_freezer_of(pid_t pid) {
  const auto groups = read_process_file(pid, "cgroup");
  const auto mounts = read_process_file(getpid(), "mountinfo");
  if (!groups || !mounts) return std::nullopt;
  return find_freezer(find_group_directories(*groups, *mounts));
}

Status check_thawed(pid_t root) {
  const auto tree = read_tree(root);
  if (!tree) return {};  // the process has ended
  for (const ProcessStat& process : *tree) {
    const auto freezer = find_freezer_of(process.pid);
    if (!freezer) continue;
    return failure(EBUSY, fmt::format("process {} ({}) is in a frozen control group: thaw it first "
                                      "(`{}`)",
                                      process.pid, process.name, thaw_command(*freezer)));
  }
  return {};
}

std::string thaw_command(const std::string& freezer) {
  return (freezer.ends_with("cgroup.freeze") ? "echo 0 > " : "echo THAWED > ") + freezer;
}

std::string allowed_cpus(const std::vector<GroupDirectory>& directories) {
  for (const GroupDirectory& directory : directories) {
    if (!directory.is_unified && !directory.has("cpuset")) continue;
    for (const char* name : {"/cpuset.cpus.effective", "/cpuset.effective_cpus", "/cpuset.cpus"}) {
      std::string cpus = first_line_of(directory.path + name);
      if (!cpus.empty()) return cpus;
    }
  }
  return "";
}

std::string allowed_cpus_of(pid_t pid) {
  const auto groups = read_process_file(pid, "cgroup");
  const auto mounts = read_process_file(getpid(), "mountinfo");
  return groups && mounts ? allowed_cpus(find_group_directories(*groups, *mounts)) : "";
}

}  // namespace ppmr
