// Findings that stop the dump of a tree on any target.
#include <array>

#include "daemon/command_line/size_option.h"
#include "preflight/preflight_findings.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/control_groups.h"

namespace ppmr {
namespace {

// CRIU before 4 keeps the limit in 32 bits.
constexpr uint64_t kGhostLimitMaxMib = 4095;

// An attribute that a process has, and may lose if the user accepts the loss.
struct Loss {
  bool (*has)(const ProcessFact&);
  const char* kind;
  const char* sentence;
};

constexpr std::array kLosses = {
    Loss{[](const ProcessFact& process) { return process.is_landlocked; }, kLandlock,
         "is restricted by Landlock, or by the profile of another security module, and CRIU would "
         "restore it without its restrictions"},
    Loss{[](const ProcessFact& process) { return process.denies_write_execute; }, kMdwe,
         "may not make memory executable (MDWE, MemoryDenyWriteExecute= of systemd), and CRIU "
         "would restore it without this restriction"},
    Loss{[](const ProcessFact& process) { return process.lost.has_seals; }, kSeals,
         "has sealed mappings (mseal(2)), and CRIU would restore them without their seals"},
    Loss{[](const ProcessFact& process) { return process.lost.has_protection_keys; },
         kProtectionKeys,
         "protects mappings by keys (pkeys(7)), and CRIU would restore them without their keys"},
    Loss{[](const ProcessFact& process) { return process.faults_on_cpu_queries; }, kCpuFaults,
         "gets a signal for the instructions RDTSC or CPUID (prctl(PR_SET_TSC), "
         "ARCH_SET_CPUID), and after a move it would not"}};

void add_loss(const MoveOptions& options, const char* kind, const std::string& sentence,
              Findings& findings, const std::string& other_remedy = "keep it here") {
  const bool is_accepted = options.allowed_losses.contains(kind);
  findings.add(
      {is_accepted ? Severity::kWarns : Severity::kStops, sentence,
       is_accepted ? "" : fmt::format("{}, or accept that: --allow-loss {}", other_remedy, kind)});
}

void check_processes(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  for (const ProcessFact& process : tree.processes) {
    const std::string name = tree.name_of(process.pid);
    if (process.tracer != 0) {
      findings.stop(
          fmt::format("process {1} (a debugger or strace) traces {0}", name, process.tracer),
          "detach it first");
    }
    if (!process.freezer.empty()) {
      findings.stop(fmt::format("{} is in a frozen control group, and CRIU cannot dump it", name),
                    fmt::format("thaw the group first (docker unpause, systemctl thaw, or `{}`)",
                                thaw_command(process.freezer)));
    }
    for (const Loss& loss : kLosses) {
      if (loss.has(process)) add_loss(options, loss.kind, name + " " + loss.sentence, findings);
    }
    if (process.dispatches_calls) {
      findings.stop(name +
                        " dispatches its own system calls (prctl(PR_SET_SYSCALL_USER_DISPATCH), "
                        "as Wine does), and CRIU's calls in it would end it",
                    "keep it here");
    }
    if (!process.was_asked) {
      findings.warn(name +
                        " could not be checked for attributes that a move loses and the kernel "
                        "shows nowhere, such as a keyring or restrictions of Landlock",
                    "run the checks again (--dry-run)");
    }
    if (process.landlock_is_unknown) {
      findings.warn(name + " could not be checked for restrictions of Landlock, which a move loses",
                    "make sure that it is not restricted: it is in a user namespace of its own, or "
                    "setpriv(1) or nsenter(1) is missing");
    }
    if (process.has_segments) {
      findings.stop(
          name + " has segments of its own (modify_ldt(2)), and CRIU does not restore them",
          "keep it here");
    }
    for (const std::string& attribute : process.lost.phrases) {
      findings.warn(fmt::format("{} would lose its {}", name, attribute),
                    "start the program without it");
    }
    if (process.has_keyring) {
      findings.warn(name + " has a keyring of its own, and CRIU does not restore it",
                    "let the program add its keys again after the move");
    }
    if (process.seccomp_mode == 2) {
      findings.warn(name + " has a seccomp filter",
                    "CRIU can restore it only if the kernels of both nodes have "
                    "CONFIG_CHECKPOINT_RESTORE and CONFIG_SECCOMP_FILTER");
    }
  }
  if (tree.processes.empty()) return;
  const ProcessFact& root = tree.processes.front();
  for (const std::string& attribute : tree.lost_attributes) {
    findings.warn(fmt::format("{} would lose its {}", tree.name_of(root.pid), attribute),
                  "start the program without it, or all of its tasks with the same value");
  }
  if (!options.shell_job && !tree.contains(root.session)) {
    findings.stop(
        fmt::format("{} belongs to the session of process {}, which would not move with it",
                    tree.name_of(root.pid), root.session),
        "pass `-- --shell-job`, or start the program in a new session (setsid)");
  }
  if (tree.has_namespace("pid") && !root.namespace_pids.empty() &&
      root.namespace_pids.back() != 1) {
    findings.stop(fmt::format("{} is not the first process of its pid namespace (a container?)",
                              tree.name_of(root.pid)),
                  "move the first process of that namespace with all of its descendants, or run "
                  "ppmr inside the namespace");
  }
  // CRIU can restore a user namespace if the tree also has its own mount and pid namespaces, as
  // containers have.
  const bool is_like_container = tree.has_namespace("mnt") && tree.has_namespace("pid");
  if (tree.has_namespace("user") && !is_like_container) {
    findings.stop(fmt::format("{} has its own user namespace, which CRIU does not restore",
                              tree.name_of(root.pid)),
                  "start it without a user namespace, or in a container");
  }
  if (!tree.has_host_paths()) {
    findings.warn(fmt::format("{} has its own mount namespace", tree.name_of(root.pid)),
                  "its files were not compared, so make sure that everything mounted in this "
                  "namespace exists at the target");
  }
  if (tree.has_namespace("net")) {
    findings.warn(fmt::format("{} has its own network namespace", tree.name_of(root.pid)),
                  "its addresses and ports were not compared with those of the target");
  }
}

bool is_of_rdma(const Peculiarity& item) {
  return (item.kind == "device" && item.object.starts_with(kRdmaDevices)) ||
         (item.kind == "anonymous file" && item.object == "[infinibandevent]");
}

std::string remedy_for_device(const Peculiarity& item) {
  if (!is_of_rdma(item)) return "make it close the device first";
  return "let its MPI library use TCP between hosts: OMPI_MCA_pml=ob1 and "
         "OMPI_MCA_btl=tcp,self,vader, or UCX_TLS=tcp,posix,self";
}

// Adds the reasons against a release of their devices that the processes themselves report.
void check_rdma_releasers(const TreeFacts& tree, Findings& findings) {
  for (const RdmaCheck& check : tree.rdma_checks) {
    for (const std::string& hindrance : check.hindrances) {
      findings.stop(fmt::format("{} cannot release RDMA: {}", tree.name_of(check.pid), hindrance),
                    "start both ends with `ppmr rdma run` and the same --directory; a peer that "
                    "does not answer must run and be reachable over TCP");
    }
    if (check.silence.empty()) continue;
    findings.warn(fmt::format("it is not known whether {} can release RDMA: {}",
                              tree.name_of(check.pid), check.silence),
                  "if it is stopped, let it go on; the move is aborted if it does not answer then");
  }
}

void check_backlog(const MoveOptions& options, const std::string& name, const Peculiarity& item,
                   Findings& findings) {
  if (item.kind == "tcp backlog") {
    const std::string sentence =
        fmt::format("{} has not accepted a TCP connection at {} yet", name, item.object);
    if (options.skip_in_flight) {
      findings.warn(sentence + ", and CRIU drops it", "its client must connect again");
    } else {
      findings.stop(sentence + ", and CRIU cannot save it",
                    "try again when it has, or pass `-- --skip-in-flight`, and the client must "
                    "connect again");
    }
  } else if (item.kind == "unix backlog to elsewhere") {
    findings.stop(
        fmt::format("{} waits for a program that does not move to accept its connection over the "
                    "Unix socket {}",
                    name, item.object),
        "let it close the connection");
  } else {
    const bool has_data = item.kind == "unix backlog";
    findings.stop(
        fmt::format("{} has not accepted a connection {} over the Unix socket {} yet", name,
                    has_data ? "with data" : "of a program that does not move", item.object),
        has_data ? "try again when it has" : "end that program first");
  }
}

void check_peculiarities(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  // If the tree holds the master side (ptmx) of its terminals, the terminals move with it.
  const bool own_terminals = std::any_of(
      tree.peculiarities.begin(), tree.peculiarities.end(),
      [](const auto& item) { return item.kind == "terminal" && item.object.ends_with("ptmx"); });
  for (const Peculiarity& item : tree.peculiarities) {
    const std::string name = tree.name_of(item.pid);
    if (!item.external.empty() && options.externals.contains(item.external)) continue;
    if (is_of_rdma(item) && !tree.rdma_releasers.empty()) {
      findings.warn(fmt::format("{} uses RDMA ({})", name, item.object),
                    fmt::format("ppmr asks {} to release it before the dump; if that fails, the "
                                "process stays",
                                tree.name_of(tree.rdma_releasers.front())));
    } else if (item.kind == "terminal" && !own_terminals) {
      findings.stop(
          fmt::format("{} uses the terminal {}, which does not move with it", name, item.object),
          "start it with input and output redirected to files, or start it in screen or tmux and "
          "move the screen or tmux server");
    } else if (item.kind == "device") {
      findings.stop(fmt::format("{} has the device {} open, and CRIU cannot save its state", name,
                                item.object),
                    remedy_for_device(item));
    } else if (item.kind == "lock" && !options.file_locks) {
      findings.stop(fmt::format("{} holds a lock on {}", name, item.object),
                    "pass `-- --file-locks`, if no other process needs the lock during the move");
    } else if (item.kind == "inotify" || item.kind == "fanotify") {
      if (options.force_irmap) continue;
      findings.warn(
          fmt::format("{} watches files ({})", name, item.kind),
          "the watched paths must exist at the target; if CRIU cannot find their names, pass "
          "`-- --force-irmap`");
    } else if (item.kind == "socket") {
      findings.stop(fmt::format("{} has a socket of a type that CRIU does not support ({})", name,
                                item.object),
                    "make it close the socket first");
    } else if (item.kind == "anonymous file") {
      findings.stop(fmt::format("{} uses {}, which CRIU does not support", name, item.object),
                    item.object == "[io_uring]" ? "start the program without io_uring"
                                                : "make it close the file first");
    } else if (item.kind.find("backlog") != std::string::npos) {
      check_backlog(options, name, item, findings);
    } else if (item.kind == "common memory") {
      findings.stop(
          fmt::format("{} has the same memory as process {} (clone(2) with CLONE_VM), and "
                      "CRIU does not support that",
                      name, item.object),
          "keep it here");
    } else if (item.kind == "message queue") {
      findings.stop(
          fmt::format(
              "{} has the message queue {} open (mq_overview(7)), and CRIU does not support "
              "such queues",
              name, item.object),
          "make it close the queue first");
    } else if (item.kind == "nested namespace" && !tree.container) {
      findings.stop(fmt::format("{} is in a {} namespace of its own, and CRIU restores such "
                                "namespaces only for the first process of a tree",
                                name, item.object),
                    "move that process with its descendants alone, or keep it here");
    } else if (item.kind == "foreign process") {
      findings.stop(
          fmt::format("{} has a pidfd of process {}, which would not move with it", name,
                      item.object),
          "move both: the pidfd's process has to be a descendant of the process that moves");
    } else if (item.kind == "system v memory" && !tree.has_namespace("ipc")) {
      findings.stop(
          fmt::format("{} uses System V shared memory that is visible to the whole node", name),
          "start it in a new IPC namespace (unshare --ipc), which moves with it");
    } else if (item.kind == "system v object") {
      add_loss(options, kSystemV,
               fmt::format("{} uses {}, which belongs to the whole node and would not move with it",
                           name, item.object),
               findings, "start it in a new IPC namespace (unshare --ipc), which moves with it");
    } else if (item.kind == "ambiguous shared memory") {
      findings.stop(
          fmt::format(
              "{} has a shared mapping whose inode number is the id of its System V segment "
              "{}, and CRIU would confuse the two",
              name, item.object),
          "restart the program, so that the numbers differ");
    } else if (item.kind == "ppmr mount") {
      findings.stop(fmt::format("{} has {} open, which is in a ppmr mount", name, item.object),
                    "make it close the file, because the mount does not move");
    } else if (item.kind == "foreign mount" && !tree.container) {
      findings.stop(
          fmt::format("{} has {} open from another mount namespace, where CRIU does not "
                      "find it",
                      name, item.object),
          "start the process so that its input, output and working directory belong to its own "
          "mount namespace, for example with nsenter --wd and </dev/null");
    }
  }
}

void check_deleted_files(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  for (const FileFact& file : tree.files) {
    if (!file.deleted || file.type != "file") continue;
    const std::string sentence =
        fmt::format("{} uses {} ({}), which was deleted", tree.name_of(file.pid), file.path,
                    format_size(file.size_bytes));
    if (file.links > 0) {
      if (!options.link_remap)
        findings.stop(sentence + " but has another hard link", "pass `-- --link-remap`");
    } else if (file.size_bytes > options.ghost_limit_bytes) {
      const uint64_t mebibytes = (file.size_bytes >> 20) + 1;
      // A job agent already passes the largest limit, so only the user of `ppmr migrate` gets an
      // option.
      findings.stop(sentence + " and is too large for the checkpoint",
                    mebibytes <= kGhostLimitMaxMib
                        ? fmt::format("pass `-- --ghost-limit={}M`", mebibytes)
                        : fmt::format("CRIU carries deleted files of up to {} MiB: let the process "
                                      "keep the name of the file, or use a smaller one",
                                      kGhostLimitMaxMib));
    }
  }
}

void check_connections(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  if (options.tcp_established || options.tcp_close) return;
  std::vector<std::string> connections;
  for (const InternetSocket& socket : tree.sockets) {
    if (!socket.is_connection()) continue;
    connections.push_back(fmt::format("{}:{} with {}:{}", socket.local_address, socket.local_port,
                                      socket.remote_address, socket.remote_port));
  }
  if (connections.empty()) return;
  findings.stop(
      fmt::format("{} has TCP connections ({})", tree.name_of(tree.root), list_of(connections)),
      "pass `-- --tcp-established` and move their addresses to the target, or pass `-- "
      "--tcp-close` to drop the connections");
}

}  // namespace

void check_privileges(const TreeFacts& tree, const NodeFacts& node, const std::string& where,
                      Severity severity, Findings& findings) {
  if (node.has_capability(kCapSysResource)) return;
  for (const ProcessFact& process : tree.processes) {
    if (process.uid == node.user) continue;
    findings.add({severity,
                  fmt::format("{} runs as user {}, and CRIU lacks CAP_SYS_RESOURCE on the {}",
                              tree.name_of(process.pid), process.uid, where),
                  "give ppmr this capability there (many containers lack it)"});
    return;
  }
}

void check_tree(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  check_processes(options, tree, findings);
  check_peculiarities(options, tree, findings);
  check_rdma_releasers(tree, findings);
  check_deleted_files(options, tree, findings);
  check_connections(options, tree, findings);
}

}  // namespace ppmr
