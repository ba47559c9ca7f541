#include "jobs/node/job_node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/descriptor_limit.h"
#include "base/whole_file.h"
#include "jobs/command/command.h"
#include "jobs/command/job_init.h"
#include "jobs/node/control_group.h"
#include "jobs/node/host_rdma.h"
#include "jobs/peer_directory.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kStartPatience{30};
// Mount points inside a job node.
constexpr const char* kProgram = "/run/ppmr-program";
constexpr const char* kPrivate = "/run/ppmr";
constexpr const char* kVerbsLibrary = "/run/ppmr-verbs.so";

json temporary(const std::string& path, const std::string& mode, std::vector<std::string> options) {
  options.insert(options.end(), {"nosuid", "mode=" + mode});
  return {{"destination", path}, {"type", "tmpfs"}, {"source", "tmpfs"}, {"options", options}};
}

json bind_mount(const std::string& from, const std::string& to, const char* access) {
  return {{"destination", to},
          {"type", "bind"},
          {"source", from},
          {"options", {"bind", access, "nosuid", "nodev"}}};
}

json mounts_of(const JobNodeOptions& options, const NodeSpec& spec, const std::string& bundle) {
  const std::string owner = fmt::format("uid={}", spec.user.uid);
  const std::string group = fmt::format("gid={}", spec.user.gid);
  json mounts = {
      {{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}},
      temporary("/dev", "755", {"strictatime", "size=65536k"}),
      {{"destination", "/dev/pts"},
       {"type", "devpts"},
       {"source", "devpts"},
       {"options", {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}}},
      temporary("/dev/shm", "1777", {"nodev"}),
      {{"destination", "/sys"},
       {"type", "sysfs"},
       {"source", "sysfs"},
       {"options", {"nosuid", "noexec", "nodev", "ro"}}},
      temporary("/tmp", "1777", {"nodev"}),
      temporary("/run", "755", {"nodev"}),
      temporary(kPrivate, "700", {"nodev", owner, group}),
      bind_mount(options.program, kProgram, "ro"),
      bind_mount(bundle + "/hosts", "/etc/hosts", "ro"),
  };
  if (spec.rdma) {
    mounts.push_back(bind_mount(options.verbs_library, kVerbsLibrary, "ro"));
    // Mounts the device files of the host, because their numbers differ between hosts.
    const std::string nodes = RdmaPlaces().nodes;
    mounts.push_back({{"destination", nodes},
                      {"type", "bind"},
                      {"source", nodes},
                      {"options", {"bind", "ro", "nosuid"}}});
  }
  for (const std::string& share : options.shares) mounts.push_back(bind_mount(share, share, "rw"));
  return mounts;
}

// Returns the rights to the devices for verbs. The node has no right to rdma_cm, because
// verbs_library cannot release an open rdma_cm for a move.
json device_rights() {
  json rights = json::array();
  for (const VerbsDevice& device : find_verbs_devices()) {
    rights.push_back({{"allow", true},
                      {"type", "c"},
                      {"major", device.major},
                      {"minor", device.minor},
                      {"access", "rw"}});
  }
  return rights;
}

json environment_of_init(const NodeSpec& spec) {
  json variables = {"PATH=/usr/local/bin:/usr/bin:/bin", "PPMR_JOB_TOKEN=" + spec.token};
  if (!spec.rdma) return variables;
  const std::string first_address = spec.hosts.substr(0, spec.hosts.find(' '));
  const auto for_commands = [&](const char* name, const std::string& value) {
    variables.push_back(fmt::format("{}{}={}", kForCommands, name, value));
  };
  for_commands("LD_PRELOAD", kVerbsLibrary);
  for_commands("PPMR_VERBS_DIRECTORY",
               fmt::format("{}{}:{}", kPeerDirectoryPrefix, first_address, kPeerDirectoryPort));
  for_commands("PPMR_VERBS_TOKEN_FILE", kTokenFile);
  // The libraries of peers send to this address in the job's network. They cannot use the GIDs,
  // which are addresses of the host.
  for_commands("PPMR_VERBS_ADDRESS", spec.address);
  if (spec.index == 0) variables.push_back(std::string(kIsPeerDirectory) + "=1");
  return variables;
}

// Mounts a copy of the mount of /, read-only and nosuid. With nosuid, programs gain no privileges
// even after a restore: CRIU 3.17 does not restore "no new privileges", which runc sets. The copy
// becomes read-only before it gets a place in the tree, so no write through it can change the host.
Status mount_root(const std::string& path) {
  const UniqueFd tree(open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree) return system_failure("copy the mount of", "/");
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID;
  attributes.propagation = MS_PRIVATE;
  if (mount_setattr(tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) != 0) {
    return system_failure("make read-only and nosuid", "the copy of /");
  }
  if (move_mount(tree.get(), "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return system_failure("mount the read-only copy of / on", path);
  }
  return {};
}

Status write_file(const std::string& path, const std::string& text, mode_t mode) {
  Status written = write_whole_file(path, text, O_EXCL, mode);
  // The umask may have taken away some of the rights.
  if (written && chmod(path.c_str(), mode) != 0) return system_failure("set the mode of", path);
  return written;
}

}  // namespace

std::string job_node_config(const JobNodeOptions& options, const NodeSpec& spec,
                            const std::string& group) {
  const std::string bundle = options.directory + "/" + spec.container();
  const ContainerPort port = port_of(options.network, spec.container(), spec.address);
  json config = {
      {"ociVersion", "1.0.2"},
      {"process",
       {{"terminal", false},
        {"user",
         {{"uid", spec.user.uid}, {"gid", spec.user.gid}, {"additionalGids", spec.user.groups}}},
        {"args", {kProgram, "job", "init"}},
        {"env", environment_of_init(spec)},
        {"cwd", "/"},
        // A job gets only the privileges of its user.
        {"capabilities", json::object()},
        {"noNewPrivileges", true}}},
      // mount_root() makes the root read-only and nosuid. With "readonly", runc would remount it
      // without nosuid.
      {"root", {{"path", "root"}, {"readonly", false}}},
      {"hostname", spec.name},
      {"mounts", mounts_of(options, spec, bundle)},
      {"annotations", {{"ppmr.port", port.interface}, {"ppmr.bridge", port.bridge}}},
      {"linux",
       {{"cgroupsPath", (group.empty() ? kJobGroups : group) + "/" + spec.container()},
        {"namespaces",
         {{{"type", "pid"}},
          {{"type", "mount"}},
          {{"type", "uts"}},
          {{"type", "ipc"}},
          {{"type", "network"}, {"path", port.network_namespace}}}}}},
  };
  // The job agent has raised its own limit. A program that uses select(2) needs the usual one.
  const rlimit descriptors = initial_descriptor_limit();
  config["process"]["rlimits"] = json::array({{{"type", "RLIMIT_NOFILE"},
                                               {"hard", descriptors.rlim_max},
                                               {"soft", descriptors.rlim_cur}}});
  if (spec.rdma) {
    config["linux"]["resources"] = {{"devices", device_rights()}};
    // The device locks the memory that a program registers with it.
    constexpr uint64_t kUnlimited = ~uint64_t{0};
    config["process"]["rlimits"].push_back(
        {{"type", "RLIMIT_MEMLOCK"}, {"hard", kUnlimited}, {"soft", kUnlimited}});
  }
  return config.dump(2);
}

Status JobNode::make_bundle() const {
  if (mkdir(bundle().c_str(), 0700) != 0) return system_failure("create", bundle());
  const std::string root = bundle() + "/root";
  if (mkdir(root.c_str(), 0700) != 0) return system_failure("create", root);
  if (Status made = mount_root(root); !made) return made;
  if (Status made = write_file(bundle() + "/hosts", "127.0.0.1 localhost\n" + spec_.hosts, 0644);
      !made)
    return made;
  return write_file(bundle() + "/config.json", job_node_config(options_, spec_, group_), 0600);
}

// Removes files by name. It never removes a whole tree, because the host's root is mounted in the
// bundle.
Status JobNode::remove_bundle() const {
  const std::string root = bundle() + "/root";
  if (umount2(root.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 && errno != EINVAL &&
      errno != ENOENT) {
    return system_failure("unmount", root);
  }
  for (const char* name : {"/hosts", "/neighbours", "/config.json", "/runc.log"}) {
    unlink((bundle() + name).c_str());
  }
  for (const std::string& directory : {root, bundle()}) {
    if (rmdir(directory.c_str()) != 0 && errno != ENOENT) {
      return system_failure("remove", directory);
    }
  }
  return {};
}

Status JobNode::prepare() const {
  if (spec_.rdma && options_.verbs_library.empty()) {
    return failure(ENOENT,
                   "this host has no libppmr-verbs.so beside its ppmr: install the package");
  }
  if (Status made = create_port(options_.network, spec_.container(), spec_.address); !made) {
    return made;
  }
  Status made = make_bundle();
  if (made) made = add_neighbours(spec_.container(), spec_.hosts, bundle() + "/neighbours");
  if (!made) {
    (void)remove_bundle();
    (void)remove_port(spec_.container());
  }
  return made;
}

Status JobNode::start() const {
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const ContainerPort port = port_of(options_.network, spec_.container(), spec_.address);
  if (Status attached = port.attach(); !attached) return attached;
  // The shell gives runc, and so process 1, /dev/null as standard input, output and errors. CRIU
  // cannot dump a pipe that leads out of the container.
  const std::string log = bundle() + "/runc.log";
  auto started =
      run_successfully({"sh", "-c", "exec \"$@\" </dev/null >/dev/null 2>&1", "sh", runc->path(),
                        "--log", log, "run", "--detach", "--bundle", bundle(), spec_.container()},
                       kStartPatience);
  if (started) return {};
  const std::string reason = read_whole_file(log).value_or("");
  return failure(started.error().errno_value,
                 fmt::format("runc did not start the job node {} ({}): {}", spec_.name,
                             started.error().message, reason));
}

Status JobNode::stop() const {
  const std::string container = spec_.container();
  const ContainerPort port = port_of(options_.network, container, spec_.address);
  if (Status cut = port.cut(); !cut && cut.error().errno_value != ENODEV) return cut;
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const auto now = status();
  if (!now) return failure(now.error());
  if (!now->empty()) {
    if (Status removed = runc->remove(container); !removed) return removed;
  }
  if (Status removed = remove_port(container); !removed) return removed;
  if (Status made = create_port(options_.network, container, spec_.address); !made) return made;
  return add_neighbours(container, spec_.hosts, bundle() + "/neighbours");
}

Status JobNode::remove() const {
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto now = status();
  if (!now) return failure(now.error());
  if (!now->empty()) {
    if (Status removed = runc->remove(spec_.container()); !removed) return removed;
  }
  // Slurm waits until the groups of a step no longer exist.
  if (!group_.empty()) remove_empty_groups(group_ + "/" + spec_.container());
  if (Status removed = remove_bundle(); !removed) return removed;
  return remove_port(spec_.container());
}

Result<std::string> JobNode::status() const {
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto state = runc->state(spec_.container());
  if (!state && state.error().errno_value == ENOENT) return "";
  if (!state) return failure(state.error());
  return state->status;
}

Result<bool> JobNode::has_ended() const {
  auto now = status();
  if (!now) return failure(now.error());
  return *now == "stopped";
}

}  // namespace ppmr
