#include "preflight/policy/check_restart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "preflight/policy/bundle_limits.h"
#include "preflight/policy/user_access.h"
#include "restart_loader/images/tree_images.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Values from images/fdinfo.proto.
enum FileType : uint32_t {
  kRegular = 1,
  kPipe = 2,
  kFifo = 3,
  kInternetSocket = 4,
  kUnixSocket = 5,
  kEventFd = 6,
  kEventPoll = 7,
  kSignalFd = 9,
  kTerminal = 11,
  kTimerFd = 17,
  kMemFd = 18,
};
const std::map<uint32_t, const char*> kResourceOfType = {
    {8, "inotify"},         {10, "packet-sockets"},  {12, "fanotify"},
    {13, "netlink"},        {14, "namespace-files"}, {15, "tun"},
    {16, "external-files"}, {19, "bpf-maps"},        {22, "pidfd"}};

constexpr uint32_t kDead = 2;                        // a task_state of criu/include/image.h
constexpr uint32_t kPseudoTerminal = 1;              // from tty.proto
constexpr uint32_t kExternalUnix = 1;                // a uflag of criu/sk-unix.c
constexpr uint32_t kRemapLinked = 0;                 // from remap-file-path.proto
constexpr uint32_t kMapsFile = (1 << 6) | (1 << 7);  // a vma status of criu/include/image.h
constexpr uint32_t kSystemVMemory = (1 << 10) | (1 << 11);
constexpr uint32_t kMemFdArea = 1 << 14;
constexpr uint32_t kKnownAreas = 0x1ffff & ~(kSystemVMemory | (1 << 4));
// Flags with which CRIU may open a file. Others, like O_CREAT, would make CRIU change the file.
constexpr uint32_t kFileFlags = O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_DIRECT |
                                O_LARGEFILE | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC |
                                O_PATH | O_ASYNC | 0x8000;  // the kernel's O_LARGEFILE
// File systems that CRIU creates anew for a container: proc, sysfs, tmpfs, devpts, cgroup, mqueue,
// cgroup2 (images/mnt.proto).
constexpr std::array<uint32_t, 7> kNewFileSystems = {1, 2, 5, 6, 12, 14, 23};
// Options that change nothing outside of the tree.
constexpr std::array kPlainOptions = {
    "--tcp-established", "--tcp-close",    "--skip-in-flight", "--file-locks", "--shell-job",
    "--ghost-limit",     "--network-lock", "--cpu-cap",        "--timeout",    "--force-irmap"};

// Escapes and quotes a name from an image: images come from a peer.
std::string in_quotes(const std::string& text) {
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

using CapabilityWords = google::protobuf::RepeatedField<uint32_t>;

uint64_t set_of(const CapabilityWords& words) {
  uint64_t set = 0;
  for (int i = 0; i < words.size() && i < 2; ++i) set |= uint64_t{words[i]} << (32 * i);
  return set;
}

struct NamespaceId {
  const char* name;
  uint32_t (tree_images::ids_entry::*id)() const;
};
constexpr std::array kNamespaceIds = {NamespaceId{"pid", &tree_images::ids_entry::pid_ns_id},
                                      NamespaceId{"net", &tree_images::ids_entry::net_ns_id},
                                      NamespaceId{"ipc", &tree_images::ids_entry::ipc_ns_id},
                                      NamespaceId{"uts", &tree_images::ids_entry::uts_ns_id},
                                      NamespaceId{"mnt", &tree_images::ids_entry::mnt_ns_id},
                                      NamespaceId{"user", &tree_images::ids_entry::user_ns_id},
                                      NamespaceId{"cgroup", &tree_images::ids_entry::cgroup_ns_id},
                                      NamespaceId{"time", &tree_images::ids_entry::time_ns_id}};

uint32_t first_unprivileged_port() {
  uint32_t port = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> port;
  return port;
}

class Check {
 public:
  Check(const RestartPolicy& policy, const TreeToRestore& tree, TreeImages images)
      : policy_(policy), tree_(tree), images_(std::move(images)) {}

  Status run() {
    using Step = Status (Check::*)();
    for (Step step : {&Check::check_bundle, &Check::check_credentials, &Check::check_namespaces,
                      &Check::check_executables, &Check::check_roots, &Check::check_mounts}) {
      if (Status accepted = (this->*step)(); !accepted) return accepted;
    }
    if (policy_.accepts_root() || limits_) return {};
    for (Step step : {&Check::check_options, &Check::check_images, &Check::check_files,
                      &Check::check_areas, &Check::check_ghosts, &Check::check_access}) {
      if (Status accepted = (this->*step)(); !accepted) return accepted;
    }
    return {};
  }

  // Refuses `what`. `value` is the element that the list `key` of the policy lacks.
  tl::unexpected<Error> refuse(const std::string& what, const char* key,
                               const std::string& value) const {
    return failure(EPERM, refusal_text(policy_, what, key, value));
  }
  static std::string refusal_text(const RestartPolicy& policy, const std::string& what,
                                  const char* key, const std::string& value) {
    const std::string remedy =
        !policy.file.empty()
            ? fmt::format("add {} to \"{}\" in {} there", in_quotes(value), key, policy.file)
        : value == "root" ? "start the target with --allow-root-restart (the service: "
                            "allow-root-restart in /etc/ppmr/target.conf), or with "
                            "--restart-policy FILE, which says {\"users\": [\"root\"]}"
                          : fmt::format(
                                "start the target with --restart-policy FILE, which says "
                                "{{\"{}\": [{}]}}",
                                key, in_quotes(value));
    return fmt::format("the target does not accept the tree: {}. To accept the tree, {}", what,
                       remedy);
  }

 private:
  tl::unexpected<Error> refuse_always(const std::string& what) const {
    return failure(EPERM,
                   fmt::format("the target does not accept the tree: {}, which no process without "
                               "root privileges can have there",
                               what));
  }
  tl::unexpected<Error> damaged(const std::string& image, const std::string& what) const {
    return failure(EPROTO, fmt::format("{}: not an image that CRIU has written: {}", image, what));
  }
  bool accepts_user(uint32_t id) const { return limits_ || includes(policy_.users, id); }

  // ---- Steps ----

  Status check_bundle() {
    if (tree_.bundle.empty()) return {};
    if (!includes(policy_.bundles, tree_.bundle)) {
      return refuse("it is the container of the bundle " + in_quotes(tree_.bundle), "bundles",
                    tree_.bundle);
    }
    auto limits = read_bundle_limits(tree_.bundle);
    if (!limits) return failure(limits.error());
    limits_ = std::move(*limits);
    return {};
  }

  Status check_credentials() {
    if (images_.cores.empty()) return damaged(tree_.images, "it has no processes");
    for (const auto& [image, core] : images_.cores) {
      const bool is_dead = core.has_tc() && core.tc().task_state() == kDead;
      const bool has_credentials = core.thread_core().has_creds();
      if (!has_credentials && !is_dead) return damaged(image, "a task without credentials");
      if (has_credentials) {
        if (Status accepted = check_credentials(image, core.thread_core().creds()); !accepted)
          return accepted;
      }
      const uint32_t scheduling = core.thread_core().sched_policy();
      // See sched(7).
      const bool is_realtime = scheduling == 1 || scheduling == 2 || scheduling == 6;
      if (is_realtime && !policy_.accepts_root() && !policy_.resources.contains("realtime")) {
        return refuse(image + " has a real-time scheduling policy", "resources", "realtime");
      }
    }
    return {};
  }

  Status check_credentials(const std::string& image, const tree_images::creds_entry& creds) {
    UserIdentity identity{creds.fsuid(), creds.fsgid(), {}};
    std::set<gid_t> allowed;
    for (uint32_t id : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
      if (!accepts_user(id)) {
        return refuse(
            fmt::format("{} runs as {}", image, id == 0 ? "root" : fmt::format("user {}", id)),
            "users", id == 0 ? "root" : std::to_string(id));
      }
      users_.insert(id);
      const auto groups = groups_of(id);
      allowed.insert(groups.begin(), groups.end());
    }
    if (Status accepted = check_capabilities(image, creds); !accepted) return accepted;
    std::vector<uint32_t> groups = {creds.gid(), creds.egid(), creds.sgid(), creds.fsgid()};
    groups.insert(groups.end(), creds.groups().begin(), creds.groups().end());
    for (uint32_t group : groups) {
      groups_.insert(group);
      if (policy_.accepts_root() || limits_ || allowed.contains(group) ||
          includes(policy_.groups, group))
        continue;
      return refuse(fmt::format("{} has the group {}, which user {} does not have there", image,
                                group, creds.uid()),
                    "groups", std::to_string(group));
    }
    identity.groups.assign(creds.groups().begin(), creds.groups().end());
    identities_.insert(std::move(identity));
    return {};
  }

  Status check_capabilities(const std::string& image, const tree_images::creds_entry& creds) const {
    uint64_t wanted = set_of(creds.cap_inh()) | set_of(creds.cap_prm()) | set_of(creds.cap_eff()) |
                      set_of(creds.cap_amb());
    if (creds.secbits() != 0) wanted |= uint64_t{1} << 8;  // CAP_SETPCAP
    if (policy_.accepts_root() && policy_.capabilities.empty()) return {};
    if (limits_) wanted &= ~limits_->capabilities;
    const auto& names = capability_names();
    for (size_t i = 0; wanted != 0; ++i, wanted >>= 1) {
      const std::string name = i < names.size() ? names[i] : std::to_string(i);
      if ((wanted & 1) == 0 || policy_.capabilities.contains(name)) continue;
      return refuse(fmt::format("{} has the capability {}", image, name), "capabilities", name);
    }
    return {};
  }

  Status check_namespaces() {
    std::set<std::string> own;
    const auto compare = [&](const tree_images::ids_entry& ids) {
      for (const NamespaceId& kind : kNamespaceIds) {
        const uint32_t id = (ids.*kind.id)();
        if (id != 0 && id != (images_.node.*kind.id)()) own.insert(kind.name);
      }
    };
    for (const auto& [image, ids] : images_.ids) compare(ids);
    for (const auto& [image, core] : images_.cores) compare(core.ids());
    if (limits_) {
      for (const std::string& name : limits_->namespaces) {
        if (!own.contains(name)) {
          return failure(
              EPERM,
              fmt::format(
                  "the target does not accept the tree: it lacks the {} namespace of its own "
                  "that the bundle {} demands",
                  name, tree_.bundle));
        }
      }
      return {};
    }
    for (const std::string& name : own) {
      if (!policy_.namespaces.contains(name)) {
        return refuse(fmt::format("it has a {} namespace of its own", name), "namespaces", name);
      }
    }
    if (!images_.of_namespaces.empty() && policy_.namespaces.empty()) {
      return refuse(in_quotes(images_.of_namespaces.front()) + " belongs to a namespace of its own",
                    "namespaces", "net");
    }
    // In these namespaces the paths of the tree's files are not the paths of this node.
    const bool hides_files = own.contains("mnt") || own.contains("user") || !images_.mounts.empty();
    if (hides_files && !policy_.accepts_root()) {
      return refuse("it has a mount or user namespace of its own, so its files cannot be checked",
                    "users", "root");
    }
    return {};
  }

  Status check_executables() {
    for (const auto& [image, memory] : images_.memories) {
      auto path = path_of(image, memory.exe_file_id());
      if (!path) return failure(path.error());
      if (includes(policy_.executables, *path)) continue;
      return refuse(fmt::format("{} runs {}", image, in_quotes(*path)), "executables", *path);
    }
    return {};
  }

  Status check_roots() {
    for (const auto& [image, directories] : images_.directories) {
      auto path = path_of(image, directories.root_id());
      if (!path) return failure(path.error());
      if (*path == "/" || limits_ || includes(policy_.roots, *path)) continue;
      return refuse(fmt::format("{} has the root directory {}", image, in_quotes(*path)), "roots",
                    *path);
    }
    return {};
  }

  Status check_mounts() {
    for (const tree_images::mnt_entry& mount : images_.mounts) {
      const bool is_external = mount.has_ext_key() || mount.ext_mount() != 0 ||
                               mount.mountpoint() == "./" || mount.mountpoint() == "/";
      const bool is_new = std::find(kNewFileSystems.begin(), kNewFileSystems.end(),
                                    mount.fstype()) != kNewFileSystems.end();
      if (is_external || is_new || policy_.accepts_root()) continue;
      return refuse(fmt::format("it mounts a file system of type {} at {}", mount.fstype(),
                                in_quotes(mount.mountpoint())),
                    "users", "root");
    }
    return {};
  }

  Status check_options() {
    for (const std::string& word : tree_.criu_options) {
      const std::string option = word.substr(0, word.find('='));
      if (!option.starts_with("--")) continue;
      const bool is_plain =
          std::find(kPlainOptions.begin(), kPlainOptions.end(), option) != kPlainOptions.end();
      if (is_plain || policy_.criu_options.contains(option)) continue;
      return refuse("CRIU is to restore with " + in_quotes(option), "criu_options", option);
    }
    return {};
  }

  Status check_images() {
    if (!images_.others.empty())
      return refuse_always("it has the image " + in_quotes(images_.others.front()));
    if (images_.has_files_in_flight && !policy_.resources.contains("unix-in-flight")) {
      return refuse("a socket of the tree has descriptors in its queue", "resources",
                    "unix-in-flight");
    }
    for (const tree_images::tty_info_entry& terminal : images_.terminals) {
      if (terminal.type() == kPseudoTerminal || policy_.resources.contains("terminals")) continue;
      return refuse("it has a terminal that is not a pseudoterminal", "resources", "terminals");
    }
    return {};
  }

  Status check_files() {
    for (const auto& [id, file] : images_.files) {
      if (Status accepted = check_file(file); !accepted) return accepted;
    }
    // images_.files also has the files of working directories and programs, which have no
    // descriptor.
    for (const auto& [image, directories] : images_.directories) {
      auto path = path_of(image, directories.cwd_id());
      if (!path) return failure(path.error());
      wanted_.insert({*path, X_OK, false});
    }
    for (const auto& [image, memory] : images_.memories) {
      auto path = path_of(image, memory.exe_file_id());
      if (!path) return failure(path.error());
      wanted_.insert({*path, X_OK, false});
    }
    return {};
  }

  Status check_file(const tree_images::file_entry& file) {
    switch (file.type()) {
      case kRegular:
        return file.has_reg() ? check_regular(file.reg())
                              : damaged("files.img", "a file without a path");
      case kPipe:
        return check_owner(file.pipe().fown());
      case kFifo:
        return {};
      case kInternetSocket:
        return check_internet_socket(file.isk());
      case kUnixSocket:
        return check_unix_socket(file.usk());
      case kEventFd:
        return check_owner(file.efd().fown());
      case kEventPoll:
        return check_owner(file.epfd().fown());
      case kSignalFd:
        return check_owner(file.sgfd().fown());
      case kTerminal:
        return check_owner(file.tty().fown());
      case kTimerFd:
        return check_owner(file.tfd().fown());
      case kMemFd:
        return check_owner(file.memfd().fown());
      default:
        break;
    }
    const auto known = kResourceOfType.find(file.type());
    if (known == kResourceOfType.end())
      return refuse_always(fmt::format("it has a file of type {}", file.type()));
    if (policy_.resources.contains(known->second)) return {};
    return refuse(fmt::format("it has an open file of the kind {}", known->second), "resources",
                  known->second);
  }

  // Checks the owner of a file (F_SETOWN): the process to which the kernel sends signals, and the
  // user with whose permissions it sends them.
  Status check_owner(const tree_images::fown_entry& owner) const {
    if (owner.pid() == 0 || (users_.contains(owner.uid()) && users_.contains(owner.euid())))
      return {};
    return refuse_always("a file of the tree sends signals as another user");
  }

  Status check_regular(const tree_images::reg_file_entry& file) {
    const std::string path = in_quotes(file.name());
    if (file.ext() != 0 && !policy_.resources.contains("external-files")) {
      return refuse(path + " is an external file", "resources", "external-files");
    }
    const bool has_descriptor = images_.descriptors.contains(file.id());
    if (Status accepted = want(file.name(), file.flags(), !has_descriptor); !accepted)
      return accepted;
    return check_owner(file.fown());
  }

  Status want(const std::string& path, uint32_t flags, bool or_executable) {
    if ((flags & ~kFileFlags) != 0) {
      return refuse_always(fmt::format("it opens {} with the flags {:#o}", in_quotes(path), flags));
    }
    if ((flags & O_PATH) != 0) {
      wanted_.insert({path, F_OK, false});
      return {};
    }
    const uint32_t access_mode = flags & O_ACCMODE;
    const int mode = access_mode == O_RDONLY ? R_OK : access_mode == O_WRONLY ? W_OK : R_OK | W_OK;
    wanted_.insert({path, mode, or_executable && mode == R_OK});
    return {};
  }

  Status check_internet_socket(const tree_images::inet_sk_entry& socket) const {
    if (socket.type() == SOCK_RAW && !policy_.resources.contains("raw-sockets")) {
      return refuse("it has a raw socket", "resources", "raw-sockets");
    }
    if (socket.opts().so_mark() != 0 && !policy_.capabilities.contains("net_admin")) {
      return refuse("a socket of the tree has a mark", "capabilities", "net_admin");
    }
    if (socket.src_port() != 0 && socket.src_port() < first_unprivileged_port() &&
        !policy_.capabilities.contains("net_bind_service")) {
      return refuse(fmt::format("it uses the port {}", socket.src_port()), "capabilities",
                    "net_bind_service");
    }
    return check_owner(socket.fown());
  }

  // CRIU removes the file that has the socket's name, and then binds the socket to the name.
  Status check_unix_socket(const tree_images::unix_sk_entry& socket) {
    if ((socket.uflags() & kExternalUnix) != 0 && !policy_.criu_options.contains("--ext-unix-sk")) {
      return refuse("it is connected to a socket outside of the tree", "criu_options",
                    "--ext-unix-sk");
    }
    const std::string name = socket.name().substr(0, socket.name().find('\0'));
    if (!name.empty()) {
      const std::filesystem::path path = std::filesystem::path(socket.name_dir()) / name;
      wanted_.insert({path.parent_path(), W_OK | X_OK, false});
      wanted_.insert({path, W_OK, false});
    }
    if (socket.has_file_perms() && !owns(socket.file_perms().uid(), socket.file_perms().gid())) {
      return refuse_always(in_quotes(name) + " belongs to another user");
    }
    return check_owner(socket.fown());
  }

  bool owns(uint32_t user, uint32_t group) const {
    return users_.contains(user) && groups_.contains(group);
  }

  // Checks the mapped files. CRIU opens them with flags of its own.
  Status check_areas() {
    for (const auto& [image, memory] : images_.memories) {
      for (const tree_images::vma_entry& area : memory.vmas()) {
        if ((area.status() & ~kKnownAreas) != 0) {
          if (policy_.resources.contains("system-v-memory") &&
              (area.status() & ~(kKnownAreas | kSystemVMemory)) == 0)
            continue;
          return refuse(image + " has memory of System V or of a packet socket", "resources",
                        "system-v-memory");
        }
        if ((area.status() & kMapsFile) == 0 || (area.status() & kMemFdArea) != 0) continue;
        auto path = path_of(image, static_cast<uint32_t>(area.shmid()));
        if (!path) return failure(path.error());
        const bool writes = (area.flags() & MAP_SHARED) != 0 && (area.prot() & PROT_WRITE) != 0;
        const uint32_t flags = area.has_fdflags() ? area.fdflags() : writes ? O_RDWR : O_RDONLY;
        if (Status accepted = want(*path, flags, true); !accepted) return accepted;
      }
    }
    return {};
  }

  // Checks files without a name. CRIU creates them anew, and each is visible in its directory for a
  // moment.
  Status check_ghosts() {
    for (const auto& [image, ghost] : images_.ghosts) {
      const bool is_plain = S_ISREG(ghost.mode()) || S_ISDIR(ghost.mode()) ||
                            S_ISFIFO(ghost.mode()) || S_ISLNK(ghost.mode());
      if (!is_plain || !owns(ghost.uid(), ghost.gid())) {
        return refuse_always(image + " is a device, or the file of another user");
      }
    }
    for (const tree_images::remap_file_path_entry& remap : images_.remaps) {
      if (remap.remap_type() == kRemapLinked && !policy_.resources.contains("link-remap")) {
        return refuse("it has a removed file with other names", "resources", "link-remap");
      }
      auto path = path_of("remap-fpath.img", remap.orig_id());
      if (!path) return failure(path.error());
      if (path->starts_with("/proc/")) continue;
      wanted_.insert({std::filesystem::path(*path).parent_path(), W_OK | X_OK, false});
    }
    return {};
  }

  // Checks that at least one of the users has each access: a process of the tree may pass its files
  // to others.
  Status check_access() {
    std::vector<FileAccess> left(wanted_.begin(), wanted_.end());
    std::erase_if(
        left, [this](const FileAccess& access) { return includes(policy_.files, access.path); });
    for (const UserIdentity& identity : identities_) {
      if (left.empty()) break;
      auto denied = denied_to(identity, left);
      if (!denied) return failure(denied.error());
      left = std::move(*denied);
    }
    if (left.empty()) return {};
    const FileAccess& first = left.front();
    const char* how = (first.mode & W_OK) != 0   ? "write"
                      : (first.mode & R_OK) != 0 ? "read"
                                                 : "enter or execute";
    return refuse(
        fmt::format("it needs {}, which its user may not {} there", in_quotes(first.path), how),
        "files", first.path);
  }

  Result<std::string> path_of(const std::string& image, uint32_t id) const {
    const auto file = images_.files.find(id);
    if (file == images_.files.end() || file->second.type() != kRegular || !file->second.has_reg()) {
      return damaged(image, fmt::format("the file {} is not in files.img", id));
    }
    const std::string& path = file->second.reg().name();
    if (!path.starts_with('/') || path.find('\0') != std::string::npos) {
      return damaged("files.img", in_quotes(path) + " is not an absolute path");
    }
    return path;
  }

  const RestartPolicy& policy_;
  const TreeToRestore& tree_;
  const TreeImages images_;
  std::optional<BundleLimits> limits_;  // the limits of an accepted container
  std::set<uint32_t> users_;
  std::set<uint32_t> groups_;
  std::set<UserIdentity> identities_;
  std::set<FileAccess> wanted_;
};

}  // namespace

Status check_restart(const RestartPolicy& policy, const TreeToRestore& tree) {
  if (policy.everything) return {};
  auto images = read_tree_images(tree.images, tree.small_images);
  if (!images) return failure(images.error());
  return Check(policy, tree, std::move(*images)).run();
}

Status check_announced(const RestartPolicy& policy,
                       const std::vector<AnnouncedProcess>& processes) {
  if (policy.everything) return {};
  for (const AnnouncedProcess& process : processes) {
    if (!process.bundle.empty()) {
      if (includes(policy.bundles, process.bundle)) continue;
      return failure(EPERM,
                     Check::refusal_text(
                         policy, "it is the container of the bundle " + in_quotes(process.bundle),
                         "bundles", process.bundle));
    }
    if (includes(policy.users, process.user)) continue;
    const bool is_root = process.user == 0;
    return failure(EPERM, Check::refusal_text(
                              policy,
                              fmt::format("process {} runs as {}", process.pid,
                                          is_root ? "root" : fmt::format("user {}", process.user)),
                              "users", is_root ? "root" : std::to_string(process.user)));
  }
  return {};
}

}  // namespace ppmr
