#include "processes/carried/carried_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/ioprio.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "processes/carried/inherited_attributes.h"
#include "processes/carried/multicast_probe.h"
#include "processes/carried/socket_options.h"
#include "processes/carried/thread_attributes.h"
#include "processes/control_groups.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using Pids = std::vector<int32_t>;

// The pids of a thread inside its tree: without the pid namespaces above the root's.
class PidsInTree {
 public:
  static Result<PidsInTree> of(const std::vector<ProcessIdentity>& tasks) {
    if (tasks.empty()) return failure(ESRCH, "the tree has no processes");
    const auto root = read_process_status(tasks.front().pid);
    if (!root) return failure(root.error());
    return PidsInTree(std::max<size_t>(root->namespace_pids.size(), 1) - 1);
  }
  Result<Pids> pids_of(pid_t thread) const {
    // The common case needs no file for each thread.
    if (levels_above_ == 0 && !has_inner_namespaces_) return Pids{thread};
    const auto status = read_process_status(thread);
    if (!status) return failure(status.error());
    const auto& all = status->namespace_pids;
    const auto from = static_cast<ptrdiff_t>(std::min(levels_above_, all.size()));
    return Pids(all.begin() + from, all.end());
  }

 private:
  explicit PidsInTree(size_t levels_above) : levels_above_(levels_above) {}
  size_t levels_above_;
  // A tree in the pid namespace of ppmr may have processes in namespaces below it, but CRIU
  // restores their outer pids, too.
  static constexpr bool has_inner_namespaces_ = false;
};

Cpus allowed_cpus_for(pid_t pid) {
  const std::string list = allowed_cpus_of(pid);
  std::ifstream online("/sys/devices/system/cpu/online");
  std::string all;
  std::getline(online, all);
  const Cpus here = parse_cpus(all);
  return list.empty() ? here : choose_cpus(parse_cpus(list), here);
}

std::vector<MulticastGroup> groups_of(pid_t pid) {
  return parse_groups(read_process_file(pid, "net/igmp").value_or(""),
                      read_process_file(pid, "net/igmp6").value_or(""));
}

Result<UniqueFd> open_process(const ProcessIdentity& process) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd) return system_failure("open process", std::to_string(process.pid));
  return pidfd;
}

bool is_in_our_network(pid_t pid) {
  const auto theirs = read_process_link(pid, "ns/net");
  const auto ours = read_process_link(getpid(), "ns/net");
  return theirs && ours && *theirs == *ours;
}

Status read_sockets(const ProcessIdentity& process, std::set<uint64_t>& seen,
                    MulticastProbe& multicast, carried::Process& read) {
  const auto descriptors = read_descriptors(process.pid);
  if (!descriptors) return failure(descriptors.error());
  UniqueFd pidfd;
  std::vector<MulticastGroup> groups;
  MulticastProbe* probe = nullptr;
  for (const Descriptor& descriptor : *descriptors) {
    const uint64_t inode = inode_in(descriptor.target, "socket");
    if (inode == 0 || !seen.insert(inode).second) continue;
    if (!pidfd) {
      auto opened = open_process(process);
      if (!opened) return failure(opened.error());
      pidfd = std::move(*opened);
      groups = groups_of(process.pid);
      probe = is_in_our_network(process.pid) ? &multicast : nullptr;
    }
    const auto socket = take_socket(pidfd, descriptor.number);
    if (!socket) return failure(socket.error());
    carried::Socket& entry = *read.add_socket();
    entry.set_fd(descriptor.number);
    read_socket(socket->get(), groups, probe, entry);
  }
  return {};
}

Status apply_sockets(const carried::Process& wanted, const ProcessIdentity& process) {
  if (wanted.socket().empty()) return {};
  const auto pidfd = open_process(process);
  if (!pidfd) return failure(pidfd.error());
  const auto groups = groups_of(process.pid);
  for (const carried::Socket& socket : wanted.socket()) {
    const auto taken = take_socket(*pidfd, socket.fd());
    const Status applied =
        taken ? apply_socket(socket, groups, taken->get()) : failure(taken.error());
    if (!applied) {
      return failure(applied.error().errno_value,
                     fmt::format("descriptor {} of process {}: {}", socket.fd(), process.pid,
                                 applied.error().message));
    }
  }
  return {};
}

Pids pids_in(const google::protobuf::RepeatedField<int32_t>& pids) {
  return {pids.begin(), pids.end()};
}

Status apply_threads(const carried::Process& wanted, const PidsInTree& pids, pid_t pid,
                     std::vector<std::string>& warnings) {
  const auto threads = read_threads(pid);
  if (!threads) return failure(threads.error());
  std::map<Pids, pid_t> here;
  for (const pid_t thread : *threads) {
    const auto key = pids.pids_of(thread);
    if (!key) return failure(key.error());
    here.emplace(*key, thread);
  }
  const Cpus allowed = allowed_cpus_for(pid);
  for (const carried::Thread& thread : wanted.thread()) {
    const auto found = here.find(pids_in(thread.pid()));
    if (found == here.end()) {
      return failure(ESRCH, fmt::format("process {} was restored without one of its threads", pid));
    }
    if (Status applied = apply_thread(thread, found->second, allowed, warnings); !applied) {
      return applied;
    }
  }
  return {};
}

}  // namespace

Result<carried::State> read_carried_state(const std::vector<ProcessIdentity>& tasks,
                                          const carried::Inherited* before) {
  const auto pids = PidsInTree::of(tasks);
  if (!pids) return failure(pids.error());
  carried::State state;
  std::set<uint64_t> seen;
  MulticastProbe multicast;
  for (const ProcessIdentity& task : tasks) {
    carried::Process& process = *state.add_process();
    const auto key = pids->pids_of(task.pid);
    if (!key) return failure(key.error());
    process.mutable_pid()->Add(key->begin(), key->end());
    read_process_attributes(task.pid, process);
    const Cpus allowed = allowed_cpus_for(task.pid);
    const auto threads = read_threads(task.pid);
    if (!threads) return failure(threads.error());
    for (const pid_t thread : *threads) {
      auto read = read_thread(thread, allowed);
      const auto thread_key = pids->pids_of(thread);
      if (!read) return failure(read.error());
      if (!thread_key) return failure(thread_key.error());
      read->mutable_pid()->Add(thread_key->begin(), thread_key->end());
      *process.add_thread() = std::move(*read);
    }
    if (Status read = read_sockets(task, seen, multicast, process); !read)
      return failure(read.error());
  }
  auto inherited = read_inherited(tasks, before);
  if (!inherited) return failure(inherited.error());
  *state.mutable_inherited() = std::move(inherited->agreed);
  return state;
}

Result<std::map<Pids, ProcessIdentity>> tasks_by_pids(const std::vector<ProcessIdentity>& tasks) {
  const auto pids = PidsInTree::of(tasks);
  if (!pids) return failure(pids.error());
  std::map<Pids, ProcessIdentity> found;
  for (const ProcessIdentity& task : tasks) {
    const auto key = pids->pids_of(task.pid);
    if (!key) return failure(key.error());
    found.emplace(*key, task);
  }
  return found;
}

Result<std::vector<std::string>> apply_carried_state(const carried::State& state,
                                                     const std::vector<ProcessIdentity>& tasks) {
  const auto pids = PidsInTree::of(tasks);
  if (!pids) return failure(pids.error());
  const auto here = tasks_by_pids(tasks);
  if (!here) return failure(here.error());
  std::vector<std::string> warnings;
  for (const carried::Process& process : state.process()) {
    const auto found = here->find(pids_in(process.pid()));
    if (found == here->end()) {
      const int pid = process.pid().empty() ? 0 : process.pid(0);
      return failure(ESRCH, fmt::format("process {} was killed before it ran", pid));
    }
    const ProcessIdentity& task = found->second;
    Status applied = apply_process_attributes(process, task.pid, warnings);
    if (applied) applied = apply_threads(process, *pids, task.pid, warnings);
    if (applied) applied = apply_sockets(process, task);
    if (!applied) return failure(applied.error());
  }
  const auto inherited = read_inherited(tasks);
  if (!inherited) return failure(inherited.error());
  for (const std::string& name : unlike(inherited->agreed, state.inherited())) {
    warnings.push_back(fmt::format(
        "the restored processes do not have the {} of the original: this node refuses it", name));
  }
  return warnings;
}

std::string privilege_in(const carried::State& state) {
  if (state.inherited().is_io_flusher()) return "the I/O flusher flag";
  for (const carried::Process& process : state.process()) {
    if (process.group_nice() < 0) return "a negative nice value of a session";
    for (const carried::Thread& thread : process.thread()) {
      const uint32_t policy = thread.scheduling().policy();
      if (policy != SCHED_OTHER && policy != SCHED_BATCH && policy != SCHED_IDLE) {
        return "a real-time scheduling policy";
      }
      if (thread.scheduling().nice() < 0) return "a negative nice value";
      if (IOPRIO_PRIO_CLASS(thread.io_priority()) == IOPRIO_CLASS_RT) {
        return "a real-time I/O priority";
      }
    }
    for (const carried::Socket& socket : process.socket()) {
      for (const carried::Option& option : socket.option()) {
        const bool is_off = option.value().find_first_not_of('\0') == std::string::npos;
        if (!is_off && needs_privilege(option.level(), option.name())) {
          return "the socket option " + name_of_option(option.level(), option.name());
        }
      }
    }
  }
  return "";
}

Status write_carried_state(const std::string& path, const carried::State& state) {
  std::ofstream file(path, std::ios::binary);
  file << state.SerializeAsString();
  file.close();
  return file ? Status{} : system_failure("write", path);
}

Result<std::optional<carried::State>> load_carried_state(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  const auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  carried::State state;
  if (!state.ParseFromString(*bytes)) {
    return failure(EPROTO, path +
                               ": not a file of ppmr: the source has another version of ppmr, or "
                               "the file is damaged");
  }
  return state;
}

}  // namespace ppmr
