#include "processes/select_processes.h"

#include <fmt/format.h>
#include <pwd.h>
#include <regex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr std::string_view kCgroupRoot = "/sys/fs/cgroup/";

// Uses regcomp(3), because std::regex recurses once per matched character and could overflow the
// stack.
class Pattern {
 public:
  static Result<Pattern> create(const std::string& text) {
    Pattern pattern;
    if (int error = regcomp(pattern.compiled_.get(), text.c_str(), REG_EXTENDED | REG_NOSUB)) {
      char why[200];
      regerror(error, pattern.compiled_.get(), why, sizeof(why));
      return failure(EINVAL,
                     fmt::format("'{}' is not an extended regular expression: {}", text, why));
    }
    return pattern;
  }
  bool matches(const std::string& text) const {
    return regexec(compiled_.get(), text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  struct Free {
    void operator()(regex_t* regex) const { regfree(regex), delete regex; }
  };
  std::unique_ptr<regex_t, Free> compiled_{new regex_t{}, Free{}};
};

Result<uid_t> find_user(const std::string& user) {
  uid_t number = 0;
  const auto [end, error] = std::from_chars(user.data(), user.data() + user.size(), number);
  if (error == std::errc() && end == user.data() + user.size()) return number;
  errno = 0;
  const passwd* entry = getpwnam(user.c_str());
  if (entry == nullptr)
    return failure(
        ENOENT,
        fmt::format("there is no user '{}' on this node (`getent passwd` lists them)", user));
  return entry->pw_uid;
}

// Checks the hierarchy of version 2, and the hierarchies of version 1, each of which has its own
// directory in the root.
bool exists_in_a_hierarchy(const std::string& cgroup) {
  const std::filesystem::path root(kCgroupRoot);
  std::error_code error;
  if (std::filesystem::is_directory(root.string() + cgroup, error)) return true;
  for (const auto& entry : list_directory(root).value_or(DirectoryEntries())) {
    if (std::filesystem::is_directory(entry.path().string() + cgroup, error)) return true;
  }
  return false;
}

// Removes the mount point of the hierarchy: "/sys/fs/cgroup/memory/batch" -> "/batch" if "memory"
// is a separate hierarchy.
Result<std::string> find_cgroup(std::string cgroup) {
  while (cgroup.size() > 1 && cgroup.ends_with('/')) cgroup.pop_back();
  if (cgroup.starts_with(kCgroupRoot)) {
    struct stat group {};
    if (stat(cgroup.c_str(), &group) != 0)
      return failure(ENOENT,
                     fmt::format("there is no control group {} (systemd-cgls lists them)", cgroup));
    // The root of the hierarchy is its mount point, the directory whose parent is on another
    // device.
    std::filesystem::path root = cgroup;
    for (; root.string().size() > kCgroupRoot.size(); root = root.parent_path()) {
      struct stat above {};
      if (stat(root.parent_path().c_str(), &above) != 0 || above.st_dev != group.st_dev) break;
    }
    const size_t at = std::min(root.string().size(), cgroup.size());
    cgroup = root.string().size() > kCgroupRoot.size() ? cgroup.substr(at)
                                                       : cgroup.substr(kCgroupRoot.size() - 1);
  }
  if (cgroup.empty() || cgroup == "/")
    return failure(EINVAL,
                   "the root control group contains all processes: name a control group below it");
  if (!cgroup.starts_with('/')) cgroup.insert(0, 1, '/');
  return cgroup;
}

// Returns device and inode of the program that runs as `pid`; nullopt without permission.
std::optional<std::pair<dev_t, ino_t>> program_of(const std::string& pid) {
  struct stat program {};
  if (stat(("/proc/" + pid + "/exe").c_str(), &program) != 0) return std::nullopt;
  return std::pair(program.st_dev, program.st_ino);
}

class Selection {
 public:
  static Result<ProcessSelection> run(const ProcessSelector& selector) {
    Selection selection;
    if (Status parsed = selection.parse(selector); !parsed) return failure(parsed.error());
    auto table = read_process_table();
    if (!table) return failure(table.error());
    selection.table_ = std::move(*table);
    selection.find_unmovable();
    ProcessSelection chosen = selection.choose();
    const bool is_empty = chosen.trees.empty() && chosen.excluded.empty();
    if (is_empty && selection.cgroup_ && !exists_in_a_hierarchy(*selection.cgroup_)) {
      return failure(ENOENT, fmt::format("there is no control group {} (systemd-cgls lists them)",
                                         *selection.cgroup_));
    }
    return chosen;
  }

 private:
  Status parse(const ProcessSelector& selector);
  void find_unmovable();
  bool matches(const ProcessStat& stat) const;
  ProcessSelection choose() const;

  std::optional<std::string> cgroup_;
  std::optional<uid_t> user_;
  std::optional<Pattern> pattern_;
  ProcessTable table_;
  std::map<pid_t, std::string> unmovable_;  // pid -> why it cannot move
};

Status Selection::parse(const ProcessSelector& selector) {
  if (selector.cgroup.empty() && selector.user.empty() && selector.pattern.empty())
    return failure(EINVAL, "all selectors are empty: give --cgroup, --user or --match a value");
  if (!selector.cgroup.empty()) {
    auto cgroup = find_cgroup(selector.cgroup);
    if (!cgroup) return failure(cgroup.error());
    cgroup_ = std::move(*cgroup);
  }
  if (!selector.user.empty()) {
    const auto user = find_user(selector.user);
    if (!user) return failure(user.error());
    user_ = *user;
  }
  if (!selector.pattern.empty()) {
    auto pattern = Pattern::create(selector.pattern);
    if (!pattern) return failure(pattern.error());
    pattern_ = std::move(*pattern);
  }
  return {};
}

void Selection::find_unmovable() {
  const auto our_program = program_of("self");
  for (const auto& [pid, stat] : table_) {
    if (our_program && program_of(std::to_string(pid)) == our_program)
      unmovable_[pid] = "is ppmr itself";
  }
  unmovable_[getpid()] = "is this command";
  for (pid_t pid : ancestors_of(table_, getpid()))
    unmovable_.emplace(pid, "is an ancestor of this command");
}

bool Selection::matches(const ProcessStat& stat) const {
  if (stat.pid == 1 || stat.kernel_thread || stat.is_dead()) return false;
  if (cgroup_) {
    const auto lines = read_process_file(stat.pid, "cgroup");
    if (!lines || !is_in_cgroup(*lines, *cgroup_)) return false;
  }
  if (user_) {
    const auto status = read_process_status(stat.pid);
    if (!status || status->real_uid != *user_) return false;
  }
  if (pattern_) {
    const auto command_line = read_command_line(stat.pid);
    if (!command_line || !pattern_->matches(*command_line)) return false;
  }
  return true;
}

ProcessSelection Selection::choose() const {
  std::set<pid_t> matching;
  for (const auto& [pid, stat] : table_) {
    if (matches(stat)) matching.insert(pid);
  }
  // The ancestors of a process that cannot move cannot move either. Its descendants can move.
  std::map<pid_t, std::string> blocked = unmovable_;
  for (const auto& [pid, reason] : unmovable_) {
    for (pid_t ancestor : ancestors_of(table_, pid)) {
      blocked.emplace(ancestor, fmt::format("has the descendant {}, which {}",
                                            name_process(table_, pid), reason));
    }
  }
  ProcessSelection selection;
  for (pid_t pid : matching) {
    const std::string& name = table_.at(pid).name;
    if (const auto reason = blocked.find(pid); reason != blocked.end()) {
      selection.excluded.push_back({pid, name, reason->second});
      continue;
    }
    const std::vector<pid_t> above = ancestors_of(table_, pid);
    const bool covered = std::any_of(above.begin(), above.end(), [&](pid_t ancestor) {
      return matching.contains(ancestor) && !blocked.contains(ancestor);
    });
    if (!covered) selection.trees.push_back({pid, name, read_command_line(pid).value_or("")});
  }
  return selection;
}

}  // namespace

bool is_in_cgroup(std::string_view lines, std::string_view cgroup) {
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    for (int field = 0; field < 2; ++field)  // skips the hierarchy number and the controllers
      line.remove_prefix(std::min(line.find(':') + 1, line.size()));
    if (!line.starts_with(cgroup)) continue;
    if (line.size() == cgroup.size() || line[cgroup.size()] == '/') return true;
  }
  return false;
}

Result<ProcessSelection> select_processes(const ProcessSelector& selector) {
  return Selection::run(selector);
}

}  // namespace ppmr
