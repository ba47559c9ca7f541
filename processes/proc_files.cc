#include "processes/proc_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

constexpr uint64_t kKernelThreadFlag = 0x00200000;  // PF_KTHREAD of include/linux/sched.h
constexpr unsigned long kExitingFlag = 0x4;         // PF_EXITING

std::string path_of(pid_t pid, const std::string& name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

tl::unexpected<Error> process_failure(pid_t pid, const std::string& name, int errno_value) {
  if (errno_value == ENOENT || errno_value == ESRCH)
    return failure(ESRCH, "there is no process " + std::to_string(pid));
  return system_failure("read", path_of(pid, name), errno_value);
}

// Calls `take(number)` for each entry of `directory` whose name is a number. Returns an errno or 0.
template <typename Take>
int for_each_number(const std::string& directory, Take take) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), closedir);
  if (!entries) return errno;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) take(number);
  }
}

// Returns whether a list may leave out the process whose file could not be read: the process has
// ended, or this process may not see it. After other errors, such as EMFILE, the process may be
// alive.
bool may_leave_out(const Error& error) {
  return error.errno_value == ESRCH || error.errno_value == EACCES || error.errno_value == EPERM;
}

template <typename Number>
void read_number(std::string_view text, Number& number, int base = 10) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::from_chars(text.data(), text.data() + text.size(), number, base);
}

// Finds the children of a process in the way that reads fewer files. /proc lists each child under
// the thread that forked it: one file for each thread of the process. /proc/PID/stat names the
// parent: one file for each process of the node.
class Children {
 public:
  Result<std::vector<ProcessStat>> of(pid_t parent) {
    auto listed = read_threads(parent);
    if (!listed && !may_leave_out(listed.error())) return failure(listed.error());
    const auto threads = std::move(listed).value_or(std::vector<pid_t>());
    if (!all_ && threads.size() > 1 && threads.size() > count_processes()) {
      if (auto all = read_all_processes()) all_ = std::move(*all);
    }
    std::vector<ProcessStat> children;
    if (all_) {
      for (const ProcessStat& process : *all_) {
        if (process.parent == parent && !process.is_dead()) children.push_back(process);
      }
      return children;
    }
    for (const pid_t thread : threads) {
      const auto pids = read_process_file(parent, "task/" + std::to_string(thread) + "/children");
      if (!pids && !may_leave_out(pids.error())) return failure(pids.error());
      if (!pids) continue;
      std::istringstream words(*pids);
      for (pid_t pid = 0; words >> pid;) {
        auto child = read_process_stat(pid);
        if (!child && !may_leave_out(child.error())) return failure(child.error());
        if (child && !child->is_dead()) children.push_back(std::move(*child));
      }
    }
    return children;
  }

 private:
  size_t count_processes() {
    if (count_ == 0) (void)for_each_number("/proc", [this](int) { ++count_; });
    return count_;
  }

  size_t count_ = 0;
  std::optional<std::vector<ProcessStat>> all_;
};

}  // namespace

Result<ProcessStat> parse_process_stat(std::string_view text) {
  const size_t name_at = text.find('(');
  const size_t name_end = text.rfind(')');  // the process name may contain any character, also ')'
  if (name_at == std::string_view::npos || name_end == std::string_view::npos || name_end < name_at)
    return failure(EBADMSG,
                   "cannot parse /proc/PID/stat: no process name in: " + std::string(text));
  ProcessStat stat;
  read_number(text, stat.pid);
  stat.name = text.substr(name_at + 1, name_end - name_at - 1);
  std::istringstream fields{std::string(text.substr(name_end + 1))};
  int64_t skipped = 0;
  uint64_t flags = 0;
  fields >> stat.state >> stat.parent >> stat.group >> stat.session >> stat.terminal >> skipped >>
      flags;
  for (int field = 10; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time_ticks;
  if (!fields)
    return failure(EBADMSG, "cannot parse /proc/PID/stat: too few fields in: " + std::string(text));
  stat.kernel_thread = (flags & kKernelThreadFlag) != 0;
  stat.is_exiting = (flags & kExitingFlag) != 0;
  return stat;
}

namespace {

uint64_t bytes_of_kib(std::istringstream& value) {
  uint64_t kib = 0;
  return value >> kib ? kib * 1024 : 0;
}

}  // namespace

ProcessStatus parse_process_status(std::string_view text) {
  ProcessStatus status;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, colon);
    std::istringstream values(line.substr(colon + 1));
    if (key == "Uid") values >> status.real_uid >> status.effective_uid;
    if (key == "Gid") values >> status.real_gid;
    if (key == "TracerPid") values >> status.tracer;
    if (key == "Seccomp") values >> status.seccomp_mode;
    if (key == "Threads") values >> status.threads;
    if (key == "NSpid") {
      for (pid_t pid = 0; values >> pid;) status.namespace_pids.push_back(pid);
    }
    if (key == "CapEff") read_number(line.substr(colon + 1), status.capabilities, 16);
    if (key == "SigPnd" || key == "ShdPnd") {
      uint64_t pending = 0;
      read_number(line.substr(colon + 1), pending, 16);
      status.pending_signals |= pending;
    }
    if (key == "RssAnon" || key == "RssShmem" || key == "VmSwap") {
      status.own_memory_bytes += bytes_of_kib(values);
    }
    if (key == "VmLck") status.locked_bytes = bytes_of_kib(values);
    if (key == "HugetlbPages") status.huge_bytes = bytes_of_kib(values);
  }
  return status;
}

uint64_t parse_memory_share_bytes(std::string_view text) {
  uint64_t bytes = 0;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string key;
    uint64_t kib = 0;
    fields >> key;
    if (key != "Pss_Anon:" && key != "Pss_Shmem:" && key != "SwapPss:") continue;
    if (fields >> kib) bytes += kib * 1024;
  }
  return bytes;
}

std::vector<Mapping> parse_mappings(std::string_view text) {
  constexpr std::string_view kDeleted = " (deleted)";
  std::vector<Mapping> mappings;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string range, flags, offset;
    Mapping mapping;
    if (!(fields >> range >> flags >> offset >> mapping.device >> mapping.inode)) continue;
    if (flags.size() < 4) continue;
    uint64_t begin = 0, end = 0;
    read_number(range, begin, 16);
    read_number(std::string_view(range).substr(std::min(range.find('-') + 1, range.size())), end,
                16);
    mapping.address = begin;
    mapping.size_bytes = end > begin ? end - begin : 0;
    mapping.writable = flags[1] == 'w';
    mapping.executable = flags[2] == 'x';
    mapping.shared = flags[3] == 's';
    fields >> std::ws;
    std::getline(fields, mapping.path);
    if (mapping.path.ends_with(kDeleted)) {
      mapping.path.resize(mapping.path.size() - kDeleted.size());
      mapping.deleted = true;
    }
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

Result<std::string> read_process_file(pid_t pid, const std::string& name) {
  const UniqueFd fd(open(path_of(pid, name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return process_failure(pid, name, errno);
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return process_failure(pid, name, errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

Result<std::string> read_process_link(pid_t pid, const std::string& name) {
  std::string target(256, '\0');
  for (;;) {
    const ssize_t size = readlink(path_of(pid, name).c_str(), target.data(), target.size());
    if (size < 0) return process_failure(pid, name, errno);
    if (static_cast<size_t>(size) < target.size()) {
      target.resize(static_cast<size_t>(size));
      return target;
    }
    target.resize(target.size() * 2);
  }
}

Result<ProcessStat> read_process_stat(pid_t pid) {
  const auto text = read_process_file(pid, "stat");
  if (!text) return failure(text.error());
  return parse_process_stat(*text);
}

Result<ProcessStatus> read_process_status(pid_t pid) {
  const auto text = read_process_file(pid, "status");
  if (!text) return failure(text.error());
  return parse_process_status(*text);
}

Result<std::vector<Descriptor>> read_descriptors(pid_t pid) {
  std::vector<int> numbers;
  if (int error = for_each_number(path_of(pid, "fd"), [&](int fd) { numbers.push_back(fd); }))
    return process_failure(pid, "fd", error);
  std::sort(numbers.begin(), numbers.end());
  std::vector<Descriptor> descriptors;
  for (int number : numbers) {
    auto target = read_process_link(pid, "fd/" + std::to_string(number));
    if (target) descriptors.push_back({number, std::move(*target)});
    // Skips a file that was closed in the meantime. If the process has ended, the check below finds
    // that.
  }
  if (auto alive = read_process_stat(pid); !alive) return failure(alive.error());
  return descriptors;
}

Result<std::vector<Mapping>> read_mappings(pid_t pid) {
  const auto text = read_process_file(pid, "maps");
  if (!text) return failure(text.error());
  return parse_mappings(*text);
}

Result<std::set<int>> read_mount_ids(pid_t pid) {
  const auto text = read_process_file(pid, "mountinfo");
  if (!text) return failure(text.error());
  std::set<int> ids;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) ids.insert(std::atoi(line.c_str()));
  return ids;
}

Result<std::vector<pid_t>> read_threads(pid_t pid) {
  std::vector<pid_t> threads;
  if (int error = for_each_number(path_of(pid, "task"), [&](int id) { threads.push_back(id); }))
    return process_failure(pid, "task", error);
  return threads;
}

Result<std::string> read_command_line(pid_t pid) {
  auto text = read_process_file(pid, "cmdline");
  if (!text) return text;
  while (!text->empty() && text->back() == '\0') text->pop_back();
  std::replace(text->begin(), text->end(), '\0', ' ');
  return text;
}

Result<std::vector<ProcessStat>> read_all_processes() {
  std::vector<ProcessStat> processes;
  Status complete;
  const int error = for_each_number("/proc", [&](int pid) {
    auto stat = read_process_stat(pid);
    if (stat) {
      processes.push_back(std::move(*stat));
    } else if (!may_leave_out(stat.error())) {
      complete = failure(stat.error());
    }
  });
  if (error != 0) return system_failure("list", "/proc", error);
  if (!complete) return failure(complete.error());
  if (processes.empty())
    return failure(ENOENT, "/proc lists no process: mount a proc file system there");
  std::sort(processes.begin(), processes.end(),
            [](const ProcessStat& a, const ProcessStat& b) { return a.pid < b.pid; });
  return processes;
}

Result<std::vector<ProcessStat>> read_tree(pid_t root) {
  auto first = read_process_stat(root);
  if (!first) return failure(first.error());
  std::vector<ProcessStat> tree{std::move(*first)};
  Children children;
  for (size_t next = 0; next < tree.size(); ++next) {
    auto found = children.of(tree[next].pid);
    if (!found) return failure(found.error());
    for (ProcessStat& child : *found) tree.push_back(std::move(child));
  }
  return tree;
}

uint64_t inode_in(std::string_view target, std::string_view kind) {
  uint64_t inode = 0;
  if (target.starts_with(kind) && target.substr(kind.size()).starts_with(":["))
    read_number(target.substr(kind.size() + 2), inode);
  return inode;
}

}  // namespace ppmr
