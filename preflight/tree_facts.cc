// Reads files through /proc/PID/root and /proc/PID/fd, that is, in the tree's mount namespace.
// Opens nothing in a ppmr mount, because the mount's daemon may be blocked on its peer.
#include "preflight/tree_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/unique_fd.h"
#include "mount/mount_table.h"
#include "preflight/file_digest.h"
#include "preflight/node_facts.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/backlogs.h"
#include "processes/carried/inherited_attributes.h"
#include "processes/control_groups.h"
#include "processes/memory/asked_attributes.h"
#include "processes/memory/landlock_probe.h"
#include "processes/system_v_memory.h"
#include "processes/system_v_objects.h"

namespace ppmr {
namespace {

constexpr std::string_view kDeleted = " (deleted)";
constexpr std::array kNestedNamespaces = {"cgroup", "ipc", "mnt",  "net",
                                          "pid",    "uts", "user", "time"};
constexpr std::array kNamespaces = {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"};
// Sockets that CRIU restores, by their extended attribute "system.sockprotoname".
const std::set<std::string_view> kOrdinarySockets = {
    "TCP",  "TCPv6", "UDP",         "UDPv6",   "UDPLITE", "UDPLITEv6", "UNIX",
    "PING", "RAW",   "UNIX-STREAM", "NETLINK", "PACKET",  "PINGv6",    "RAWv6"};

// The flags in /proc/PID/fdinfo/N.
struct OpenFlags {
  int flags = 0;
  int mount_id = -1;
  bool locked = false;
  bool lock_excludes = false;
  bool lock_is_of_process = false;
  bool lock_is_lease = false;
};

OpenFlags read_open_flags(pid_t pid, int fd) {
  OpenFlags open;
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", fd));
  if (!info) return open;
  std::istringstream lines(*info);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("flags:"))
      open.flags = static_cast<int>(std::stol(line.substr(6), nullptr, 8));
    if (line.starts_with("mnt_id:")) open.mount_id = std::stoi(line.substr(7));
    if (!line.starts_with("lock:")) continue;
    open.locked = true;
    if (line.find(" WRITE ") == std::string::npos) continue;
    open.lock_excludes = true;
    if (line.find(" POSIX ") != std::string::npos) open.lock_is_of_process = true;
    if (line.find(" LEASE ") != std::string::npos) open.lock_is_lease = true;
  }
  return open;
}

std::string type_of(uint32_t mode) {
  if (S_ISREG(mode)) return "file";
  if (S_ISDIR(mode)) return "directory";
  if (S_ISFIFO(mode)) return "fifo";
  return "other";
}

const char* kind_of(BacklogKind kind) {
  switch (kind) {
    case BacklogKind::kTcp:
      return "tcp backlog";
    case BacklogKind::kUnixWithData:
      return "unix backlog";
    case BacklogKind::kUnixFromElsewhere:
      return "unix backlog from elsewhere";
    case BacklogKind::kUnixToElsewhere:
      break;
  }
  return "unix backlog to elsewhere";
}

// Returns whether the file is a memory device: null, zero, urandom, ...
bool is_memory_device(const struct statx& found) {
  constexpr unsigned kMemoryDevices = 1;
  return S_ISCHR(found.stx_mode) && found.stx_rdev_major == kMemoryDevices;
}

bool is_message_queue(int fd) {
  constexpr long kMessageQueues = 0x19800202;  // MQUEUE_MAGIC, ipc/mqueue.c
  struct statfs found {};
  return fstatfs(fd, &found) == 0 && found.f_type == kMessageQueues;
}

// Returns the size of a deleted file. CRIU carries the whole file, not only its mapped part.
uint64_t size_of_mapped(pid_t pid, const Mapping& mapping) {
  const std::string link = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, mapping.address,
                                       mapping.address + mapping.size_bytes);
  struct stat found {};
  const bool is_found = stat(link.c_str(), &found) == 0;  // needs a right
  return is_found ? static_cast<uint64_t>(found.st_size) : mapping.size_bytes;
}

class Gathering {
 public:
  Gathering(const ProcessTree& tree, KnownDigests& known) : tree_(tree), known_(known) {}

  Result<TreeFacts> run() {
    facts_.root = tree_.root;
    facts_.name = tree_.processes.front().name;
    if (const auto mounts = read_process_file(tree_.root, "mountinfo"))
      mounts_ = parse_mountinfo(*mounts);
    for (const char* name : kNamespaces) {
      const std::string link = std::string("ns/") + name;
      const auto theirs = read_process_link(tree_.root, link);
      const auto ours = read_process_link(getpid(), link);
      if (theirs && ours && *theirs != *ours) facts_.own_namespaces.emplace_back(name);
    }
    gather_mount_ids();
    for (const ProcessStat& process : tree_.processes) {
      if (Status gathered = gather_process(process); !gathered) {
        // Skips a descendant that has ended.
        if (gathered.error().errno_value == ESRCH && process.pid != tree_.root) continue;
        return failure(gathered.error());
      }
    }
    if (Status gathered = gather_sockets(); !gathered) return failure(gathered.error());
    if (Status checked = check_system_v_memory(); !checked) return failure(checked.error());
    check_system_v_objects();
    if (Status gathered = gather_rdma_releasers(); !gathered) return failure(gathered.error());
    gather_inherited();
    facts_.manager = gather_manager_facts(tree_);
    compute_digests();
    for (auto& [key, file] : files_) facts_.files.push_back(std::move(file));
    return std::move(facts_);
  }

 private:
  void gather_mount_ids();
  void check_namespaces(pid_t pid);
  void check_common_memory(pid_t pid, pid_t parent);
  void check_process_descriptor(pid_t pid, int number);
  Status gather_process(const ProcessStat& process);
  void check_working_directory(pid_t pid, const std::string& path);
  void check_mount(pid_t pid, const std::string& path, int mount_id, uint64_t inode);
  Status gather_descriptors(pid_t pid);
  Status gather_mappings(pid_t pid);
  Status gather_sockets();
  std::set<Backlog> backlogs_now() const;
  void check_backlogs();
  Status check_system_v_memory();
  void check_system_v_objects();
  Status gather_rdma_releasers();
  void gather_descriptor(pid_t pid, const Descriptor& descriptor);
  void check_device(pid_t pid, const std::string& path, const struct statx& found);
  void gather_socket(pid_t pid, const Descriptor& descriptor);
  FileFact* add_file(pid_t pid, const std::string& path, const std::string& open_path);
  // Returns whether the file really has this name. The name ends like that of a file that the
  // kernel marks as deleted.
  bool is_name_of(const std::string& path, const std::string& open_path) const;
  std::string filesystem_of(const std::string& path) const;
  // Returns the path by which ppmr can open the tree's file `path`. The kernel reports `path` as
  // seen from ppmr's root or, if the tree has another mount namespace, from the root of that mount
  // namespace.
  std::string within_tree(const std::string& path) const {
    const bool same = !facts_.has_namespace("mnt");
    return same ? path : fmt::format("/proc/{}/root{}", tree_.root, path);
  }
  void gather_inherited();
  void compute_digests();
  void add_peculiarity(const std::string& kind, const std::string& object, pid_t pid,
                       const std::string& external = "") {
    if (peculiarities_.emplace(kind, object).second)
      facts_.peculiarities.push_back({kind, object, pid, external});
  }

  const ProcessTree& tree_;
  KnownDigests& known_;
  TreeFacts facts_;
  // Memory of the processes; a page that N processes share counts as 1/N.
  uint64_t shares_bytes_ = 0;
  std::vector<MountEntry> mounts_;
  std::set<int> mount_ids_;                // ids of the mounts that CRIU finds during the dump
  std::map<std::string, FileFact> files_;  // key: path; if deleted and open, "PATH (deleted)#INODE"
  std::set<std::pair<std::string, std::string>> peculiarities_;
  std::map<uint64_t, pid_t> sockets_;  // inode -> a process that has it open
  // Inode of unnamed shared memory -> a process that holds it.
  std::map<uint64_t, pid_t> shared_memory_inodes_;
};

void Gathering::gather_mount_ids() {
  for (const ProcessStat& process : tree_.processes) {
    if (const auto ids = read_mount_ids(process.pid)) mount_ids_.insert(ids->begin(), ids->end());
  }
  // The mount list of a process has only the mounts below its root, which chroot(2) may have
  // changed. If ppmr is in the same mount namespace, the list of ppmr has the others.
  if (facts_.has_namespace("mnt")) return;
  if (const auto ids = read_mount_ids(getpid())) mount_ids_.insert(ids->begin(), ids->end());
}

// Returns the type of the file system with the longest mount point that contains `path`.
std::string Gathering::filesystem_of(const std::string& path) const {
  const MountEntry* closest = nullptr;
  for (const MountEntry& mount : mounts_) {
    const std::string& point = mount.mountpoint;
    const bool above = point == "/" || (path.starts_with(point) &&
                                        (path.size() == point.size() || path[point.size()] == '/'));
    if (above && (closest == nullptr || point.size() >= closest->mountpoint.size()))
      closest = &mount;
  }
  return closest == nullptr ? "" : closest->type;
}

// `open_path` is a link in /proc/PID where there is one: such a link leads to the file itself, even
// if its name now belongs to another file.
bool Gathering::is_name_of(const std::string& path, const std::string& open_path) const {
  struct stat named {};
  struct stat opened {};
  return stat(within_tree(path).c_str(), &named) == 0 && stat(open_path.c_str(), &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

FileFact* Gathering::add_file(pid_t pid, const std::string& path, const std::string& open_path) {
  const bool deleted = path.ends_with(kDeleted) && !is_name_of(path, open_path);
  const std::string name = deleted ? path.substr(0, path.size() - kDeleted.size()) : path;
  if (const auto known = files_.find(path); known != files_.end() && !deleted)
    return &known->second;
  FileFact file{.path = name, .filesystem = filesystem_of(name), .deleted = deleted, .pid = pid};
  if (file.filesystem == "fuse.ppmr") {
    add_peculiarity("ppmr mount", name, pid);
    return nullptr;
  }
  if (file.filesystem == "proc" || file.filesystem == "sysfs")
    return nullptr;  // null device and others: each node has its own
  const UniqueFd fd(open(open_path.c_str(), O_PATH | O_CLOEXEC));
  struct stat found {};
  // The file was closed or unmapped in the meantime.
  if (!fd || fstat(fd.get(), &found) != 0) return nullptr;
  file.type = type_of(found.st_mode);
  file.mode = found.st_mode & 07777;
  file.links = static_cast<uint32_t>(found.st_nlink);
  file.inode = found.st_ino;
  file.modified_ns = found.st_mtim.tv_sec * 1'000'000'000LL + found.st_mtim.tv_nsec;
  if (file.type == "file") file.size_bytes = static_cast<uint64_t>(found.st_size);
  file.filesystem_id = filesystem_id_of(fd.get());
  const std::string key = deleted ? fmt::format("{}#{}", path, found.st_ino) : path;
  return &files_.emplace(key, std::move(file)).first->second;
}

Status Gathering::gather_process(const ProcessStat& process) {
  const pid_t pid = process.pid;
  const auto stat = read_process_stat(pid);
  if (!stat) return failure(stat.error());
  if (stat->identity() != process.identity())
    return failure(ESRCH, fmt::format("process {} ({}) has ended", pid, process.name));
  const auto status = read_process_status(pid);
  if (!status) return failure(status.error());
  ProcessFact fact{.pid = pid,
                   .name = stat->name,
                   .threads = read_threads(pid).value_or(std::vector<pid_t>()),
                   .namespace_pids = status->namespace_pids,
                   .session = stat->session,
                   .uid = status->effective_uid,
                   .tracer = status->tracer,
                   .freezer = find_freezer_of(pid).value_or(""),
                   .seccomp_mode = status->seccomp_mode};
  facts_.memory_bytes += status->own_memory_bytes;
  fact.lost = read_lost_attributes(pid).value_or(LostAttributes{});
  const auto rollup = read_process_file(pid, "smaps_rollup");
  shares_bytes_ += rollup ? parse_memory_share_bytes(*rollup) : status->own_memory_bytes;
  // A process may share memory with processes outside of the tree. All of that memory moves with
  // it.
  facts_.distinct_memory_bytes =
      std::max({facts_.distinct_memory_bytes, shares_bytes_, status->own_memory_bytes});
  const auto add_link = [&](const char* link) -> Result<std::string> {
    auto target = read_process_link(pid, link);
    if (target) add_file(pid, *target, fmt::format("/proc/{}/{}", pid, link));
    return target;
  };
  const auto executable = add_link("exe"), cwd = add_link("cwd"), root = add_link("root");
  for (const auto* link : {&executable, &cwd, &root}) {
    if (!*link) return failure(link->error());
  }
  fact.working_directory = *cwd;
  fact.root_directory = *root;
  check_working_directory(pid, fact.working_directory);
  check_namespaces(pid);
  check_common_memory(pid, stat->parent);
  if (const auto limits = read_process_file(pid, "limits"))
    fact.hard_limits = parse_hard_limits(*limits);
  if (Status gathered = gather_descriptors(pid); !gathered) return gathered;
  if (Status gathered = gather_mappings(pid); !gathered) return gathered;
  facts_.processes.push_back(std::move(fact));
  return {};
}

// CRIU restores namespaces of the root only.
void Gathering::check_namespaces(pid_t pid) {
  if (pid == tree_.root) return;
  for (const char* name : kNestedNamespaces) {
    const std::string link = std::string("ns/") + name;
    const auto own = read_process_link(pid, link);
    const auto of_root = read_process_link(tree_.root, link);
    if (own && of_root && *own != *of_root) add_peculiarity("nested namespace", name, pid);
  }
}

bool waits_for_vfork(pid_t pid) {
  const auto threads = read_threads(pid);
  return threads && std::any_of(threads->begin(), threads->end(), [](pid_t thread) {
           const auto stat = read_process_stat(thread);
           return stat && stat->state == 'D';
         });
}

// A process between vfork(2) and execve(2) also has the memory of its parent. The parent waits for
// it, so this does not count.
void Gathering::check_common_memory(pid_t pid, pid_t parent) {
  const auto is_common = [&] { return syscall(SYS_kcmp, pid, parent, KCMP_VM, 0, 0) == 0; };
  if (parent <= 0 || !is_common() || waits_for_vfork(parent) || !is_common()) return;
  add_peculiarity("common memory", std::to_string(parent), pid);
}

// CRIU opens the process of a pidfd again, so CRIU must restore this process, too.
void Gathering::check_process_descriptor(pid_t pid, int number) {
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", number));
  if (!info) return;
  std::istringstream lines(*info);
  for (std::string line; std::getline(lines, line);) {
    pid_t other = 0;
    if (!line.starts_with("Pid:") || !(std::istringstream(line.substr(4)) >> other)) continue;
    const bool is_inside =
        std::any_of(tree_.processes.begin(), tree_.processes.end(),
                    [other](const ProcessStat& process) { return process.pid == other; });
    if (other > 0 && !is_inside) add_peculiarity("foreign process", std::to_string(other), pid);
  }
}

void Gathering::check_working_directory(pid_t pid, const std::string& path) {
  const UniqueFd fd(open(fmt::format("/proc/{}/cwd", pid).c_str(), O_PATH | O_CLOEXEC));
  struct stat found {};
  if (!fd || fstat(fd.get(), &found) != 0) return;
  check_mount(pid, path, read_open_flags(getpid(), fd.get()).mount_id, found.st_ino);
}

Status Gathering::gather_descriptors(pid_t pid) {
  const auto open = read_descriptors(pid);
  if (!open) return failure(open.error());
  for (const Descriptor& descriptor : *open) gather_descriptor(pid, descriptor);
  return {};
}

void Gathering::check_mount(pid_t pid, const std::string& path, int mount_id, uint64_t inode) {
  if (mount_ids_.contains(mount_id)) return;
  add_peculiarity("foreign mount", path, pid, fmt::format("file[{:x}:{:x}]", mount_id, inode));
}

void Gathering::gather_descriptor(pid_t pid, const Descriptor& descriptor) {
  const std::string& target = descriptor.target;
  if (target.starts_with("anon_inode:")) {
    const std::string name = target.substr(target.find(':') + 1);
    if (name == "inotify" || name == "[fanotify]") {
      add_peculiarity(name == "inotify" ? "inotify" : "fanotify", name, pid);
      return;
    }
    // CRIU restores only these kinds of anonymous files.
    static const std::set<std::string_view> kSupported = {"[eventfd]", "[eventpoll]", "[signalfd]",
                                                          "[timerfd]", "[pidfd]"};
    if (name == "[pidfd]") check_process_descriptor(pid, descriptor.number);
    if (!kSupported.contains(name)) add_peculiarity("anonymous file", name, pid);
    return;
  }
  if (target.starts_with("socket:[")) return gather_socket(pid, descriptor);
  if (!target.starts_with('/')) return;
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor.number);
  if (target.starts_with("/memfd:")) {
    struct stat memory {};
    if (stat(path.c_str(), &memory) == 0) shared_memory_inodes_.emplace(memory.st_ino, pid);
    return;
  }
  // A running process may replace its descriptors. This descriptor holds the file, so that all
  // facts belong to one file. If a descriptor has changed since ppmr listed it, the process does
  // not keep its file open.
  const OpenFlags open = read_open_flags(pid, descriptor.number);
  const UniqueFd held(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!held) return;
  const auto held_name = read_process_link(getpid(), fmt::format("fd/{}", held.get()));
  if (!held_name || *held_name != target) return;
  if (is_message_queue(held.get())) return add_peculiarity("message queue", target, pid);
  struct statx found {};
  if (statx(held.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &found) !=
      0)
    return;
  const bool is_device = S_ISCHR(found.stx_mode) || S_ISBLK(found.stx_mode);
  if (!is_device || is_memory_device(found)) {
    check_mount(pid, target, read_open_flags(getpid(), held.get()).mount_id, found.stx_ino);
  }
  if (is_device) return check_device(pid, target, found);
  if (open.locked) add_peculiarity("lock", target, pid);
  FileFact* file = add_file(pid, target, fmt::format("/proc/self/fd/{}", held.get()));
  if (file == nullptr) return;
  file->lock_excludes = file->lock_excludes || open.lock_excludes;
  file->lock_is_of_process = file->lock_is_of_process || open.lock_is_of_process;
  file->lock_is_lease = file->lock_is_lease || open.lock_is_lease;
  if ((open.flags & O_ACCMODE) == O_RDONLY) return;
  const bool appends = (open.flags & O_ACCMODE) == O_WRONLY && (open.flags & O_APPEND) != 0;
  file->append_only = appends && (!file->writable || file->append_only);
  file->writable = true;
}

void Gathering::check_device(pid_t pid, const std::string& path, const struct statx& found) {
  const unsigned number = found.stx_rdev_major, minor_number = found.stx_rdev_minor;
  constexpr unsigned kMiscellaneous = 10, kTunMinor = 200;
  const bool terminal = number == 4 || number == 5 || (number >= 136 && number <= 143);
  if (is_memory_device(found)) return;
  if (S_ISCHR(found.stx_mode) && number == kMiscellaneous && minor_number == kTunMinor) return;
  add_peculiarity(S_ISCHR(found.stx_mode) && terminal ? "terminal" : "device", path, pid,
                  fmt::format("dev[{}/{}]", number, minor_number));
}

void Gathering::gather_socket(pid_t pid, const Descriptor& descriptor) {
  sockets_.emplace(inode_in(descriptor.target, "socket"), pid);
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor.number);
  char family[64];
  const ssize_t size = getxattr(path.c_str(), "system.sockprotoname", family, sizeof(family));
  if (size <= 0) return;
  const std::string name(family, strnlen(family, static_cast<size_t>(size)));
  if (!kOrdinarySockets.contains(name)) add_peculiarity("socket", name, pid);
}

Status Gathering::gather_mappings(pid_t pid) {
  const auto mappings = read_mappings(pid);
  if (!mappings) return failure(mappings.error());
  for (const Mapping& mapping : *mappings) {
    constexpr std::string_view kAnonymous = "anon_inode:";
    if (mapping.path.starts_with(kAnonymous)) {  // the descriptor may be closed
      add_peculiarity("anonymous file", mapping.path.substr(kAnonymous.size()), pid);
    }
    if (!mapping.path.starts_with('/')) continue;
    if (mapping.path.starts_with("/memfd:") || (mapping.deleted && mapping.path == "/dev/zero")) {
      shared_memory_inodes_.emplace(mapping.inode, pid);
      continue;
    }
    if (mapping.deleted && mapping.path.starts_with("/SYSV")) {
      add_peculiarity("system v memory", mapping.path, pid);
      continue;
    }
    const std::string path = mapping.path + (mapping.deleted ? std::string(kDeleted) : "");
    struct stat named {};
    const bool is_deleted = mapping.deleted && (stat(within_tree(path).c_str(), &named) != 0 ||
                                                named.st_ino != mapping.inode);
    // CRIU stores a deleted file in the checkpoint.
    if (is_deleted) {
      files_.try_emplace(path, FileFact{.path = mapping.path,
                                        .type = "file",
                                        .size_bytes = size_of_mapped(pid, mapping),
                                        .mapped = true,
                                        .deleted = true,
                                        .pid = pid});
      continue;
    }
    FileFact* file = add_file(pid, path, within_tree(path));
    if (file == nullptr) continue;
    if (file->type != "file") {
      if (file->type == "other") add_peculiarity("device", path, pid);
      continue;
    }
    file->mapped = true;
    file->mapped_for_writing |= mapping.shared && mapping.writable;
    file->writable |= file->mapped_for_writing;
  }
  return {};
}

Status Gathering::gather_sockets() {
  if (sockets_.empty()) return {};
  auto sockets = read_internet_sockets(tree_.root);
  if (!sockets) return failure(sockets.error());
  check_backlogs();
  for (InternetSocket& socket : *sockets) {
    if (sockets_.contains(socket.inode)) facts_.sockets.push_back(std::move(socket));
  }
  return {};
}

std::set<Backlog> Gathering::backlogs_now() const {
  std::set<uint64_t> own;
  for (const auto& [inode, pid] : sockets_) own.insert(inode);
  const auto internet_sockets = read_internet_sockets(tree_.root);
  const auto unix_sockets = read_unix_sockets(tree_.root);
  return find_backlogs(own, internet_sockets.value_or(std::vector<InternetSocket>()),
                       unix_sockets.value_or(UnixSockets()));
}

// A program that works accepts a waiting connection soon, so only connections count that keep
// waiting.
void Gathering::check_backlogs() {
  constexpr int kLooks = 10;
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  std::set<Backlog> found = backlogs_now();
  for (int look = 0; look < kLooks && !found.empty(); ++look) {
    std::this_thread::sleep_for(kBetweenLooks);
    const std::set<Backlog> still = backlogs_now();
    std::erase_if(found, [&](const Backlog& backlog) { return !still.contains(backlog); });
  }
  for (const Backlog& backlog : found) {
    const std::string name = backlog.name.empty() ? "without a name" : backlog.name;
    add_peculiarity(kind_of(backlog.kind), name, sockets_.at(backlog.socket));
  }
}

void Gathering::check_system_v_objects() {
  if (facts_.has_namespace("ipc")) return;  // the objects move with their namespace
  std::set<pid_t> pids;
  for (const ProcessStat& process : tree_.processes) pids.insert(process.pid);
  for (const SystemVObject& object : find_system_v_objects(pids)) {
    add_peculiarity("system v object", object.name, object.pid);
  }
}

// The number of a System V segment is its identifier; the number of other unnamed shared memory is
// its inode. CRIU uses these numbers in the names of its images (pagemap-shmem-NUMBER.img): if two
// are equal, CRIU 4.2.1 fails, and CRIU 3.17 restores wrong memory.
Status Gathering::check_system_v_memory() {
  if (shared_memory_inodes_.empty() || !facts_.has_namespace("ipc")) return {};
  const auto segments = read_system_v_segments(tree_.root);
  if (!segments) return failure(segments.error());
  for (const uint64_t segment : *segments) {
    const auto same = shared_memory_inodes_.find(segment);
    if (same != shared_memory_inodes_.end())
      add_peculiarity("ambiguous shared memory", std::to_string(segment), same->second);
  }
  return {};
}

Status Gathering::gather_rdma_releasers() {
  std::vector<pid_t> pids;
  for (const ProcessStat& process : tree_.processes) pids.push_back(process.pid);
  const auto listeners = find_rdma_listeners(pids);
  if (!listeners) return failure(listeners.error());
  for (const RdmaListener& listener : *listeners) facts_.rdma_releasers.push_back(listener.pid);
  facts_.rdma_checks = check_rdma_listeners(*listeners);
  return {};
}

void Gathering::gather_inherited() {
  std::vector<ProcessIdentity> tasks;
  for (const ProcessStat& process : tree_.processes) tasks.push_back(process.identity());
  if (auto inherited = read_inherited(tasks)) facts_.lost_attributes = std::move(inherited->lost);
}

// Computes no SHA-256 of files that the tree can write, because they may change during the read.
void Gathering::compute_digests() {
  for (auto& [key, file] : files_) {
    if (file.type != "file" || file.deleted || is_network_filesystem(file.filesystem)) continue;
    const UniqueFd fd(open(within_tree(file.path).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat found {};
    if (!fd || fstat(fd.get(), &found) != 0 || found.st_ino != file.inode) continue;
    if (file.mapped) file.build_id = build_id_of(fd.get());
    if (file.writable || file.size_bytes > kDigestedSizeMaxBytes) continue;
    const auto ns = [](const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; };
    const KnownDigests::key_type known_key{found.st_dev, found.st_ino, found.st_size,
                                           ns(found.st_mtim), ns(found.st_ctim)};
    if (const auto known = known_.find(known_key); known != known_.end()) {
      file.digest = known->second;
    } else if (auto digest = digest_of(fd.get(), file.size_bytes, file.path)) {
      file.digest = known_.emplace(known_key, std::move(*digest)).first->second;
    }
  }
}

}  // namespace

bool TreeFacts::has_namespace(const std::string& name) const {
  return std::find(own_namespaces.begin(), own_namespaces.end(), name) != own_namespaces.end();
}

bool TreeFacts::contains(pid_t pid) const {
  return std::any_of(processes.begin(), processes.end(),
                     [pid](const ProcessFact& process) { return process.pid == pid; });
}

std::string TreeFacts::name_of(pid_t pid) const {
  for (const ProcessFact& process : processes) {
    if (process.pid == pid) return fmt::format("{} ({})", pid, process.name);
  }
  return std::to_string(pid);
}

Result<TreeFacts> gather_tree_facts(const ProcessTree& tree, KnownDigests& known) {
  if (tree.processes.empty()) return failure(ESRCH, fmt::format("process {} has ended", tree.root));
  return Gathering(tree, known).run();
}

Result<TreeFacts> gather_tree_facts(const ProcessTree& tree) {
  KnownDigests known;
  return gather_tree_facts(tree, known);
}

namespace {

bool has_ended(pid_t thread) {
  const auto stat = read_process_stat(thread);
  return !stat || stat->is_dead();
}

// On a busy machine a thread that runs may stop late.
std::optional<AskedAttributes> ask_patiently(pid_t thread) {
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (auto answer = ask_attributes(thread)) return answer;
    if (has_ended(thread)) return AskedAttributes{};
    const auto stat = read_process_stat(thread);
    if (stat && stat->state == 'D') break;
  }
  return std::nullopt;
}

}  // namespace

void find_restrictions(TreeFacts& tree) {
  LandlockProbe probe;
  for (ProcessFact& process : tree.processes) {
    // The threads of such a process would not stop.
    if (process.tracer != 0 || !process.freezer.empty()) continue;
    AskedAttributes told;
    for (const pid_t thread : process.threads) {
      const auto answer = ask_patiently(thread);
      process.was_asked = answer.has_value();
      if (!answer) break;  // each further thread that does not stop would cost its time, too
      told |= *answer;
      const auto is_restricted = probe.is_restricted(thread);
      process.is_landlocked |= is_restricted.value_or(false);
      process.landlock_is_unknown |= !is_restricted && !has_ended(thread);
    }
    process.denies_write_execute = told.denies_write_execute;
    process.has_keyring = told.has_keyring;
    process.dispatches_calls = told.dispatches_calls;
    process.faults_on_cpu_queries = told.faults_on_cpu_queries;
    process.has_segments = told.has_segments;
    if (told.has_registered_ring) {
      tree.peculiarities.push_back({"anonymous file", "[io_uring]", process.pid, ""});
    }
  }
}

void set_container(TreeFacts& tree, ContainerFacts container) {
  std::vector<FileFact> files;
  for (FileFact& file : tree.files) {
    if (!file.deleted) {
      const auto path = container.bundle.host_path(file.path);
      if (!path) continue;  // the file system exists only in the container, and runc restores it
      file.path = *path;
    }
    files.push_back(std::move(file));
  }
  tree.files = std::move(files);
  tree.container = std::move(container);
}

}  // namespace ppmr
