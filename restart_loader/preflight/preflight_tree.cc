// What of a tree itself stops its dump, wherever it is to go.
#include "mount/command_line/size_option.h"
#include "restart_loader/preflight/preflight_findings.h"

namespace ppmr {
namespace {

void check_processes(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  for (const ProcessFact& process : tree.processes) {
    const std::string name = tree.name_of(process.pid);
    if (process.tracer != 0) {
      findings.stop(fmt::format("{} is being traced by process {} (a debugger or strace)", name,
                                process.tracer),
                    "detach that first");
    }
    if (process.seccomp_mode == 2) {
      findings.warn(name + " has a seccomp filter",
                    "the kernels of both nodes have to let CRIU read and set it "
                    "(CONFIG_CHECKPOINT_RESTORE and CONFIG_SECCOMP_FILTER)");
    }
  }
  if (tree.processes.empty()) return;
  const ProcessFact& root = tree.processes.front();
  if (!options.shell_job && !tree.contains(root.session)) {
    findings.stop(fmt::format("{} belongs to the session of process {}, which does not move with "
                              "it",
                              tree.name_of(root.pid), root.session),
                  "give -- --shell-job, or start it in a session of its own (setsid)");
  }
  if (tree.has_namespace("pid") && !root.namespace_pids.empty() &&
      root.namespace_pids.back() != 1) {
    findings.stop(fmt::format("{} lives in a pid namespace (a container?) whose first process is "
                              "another",
                              tree.name_of(root.pid)),
                  "move the first process of that namespace, with all that is in it, or run ppmr "
                  "inside of it");
  }
  if (!tree.files_are_known_here()) {
    findings.warn(fmt::format("{} has a mount namespace of its own", tree.name_of(root.pid)),
                  "its files were not compared with those of the target; what is mounted in it has "
                  "to be there, too");
  }
  if (tree.has_namespace("net")) {
    findings.warn(fmt::format("{} has a network namespace of its own", tree.name_of(root.pid)),
                  "its addresses and ports were not compared with those of the target");
  }
}

void check_peculiarities(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  // A tree that holds the master side brings its terminals along.
  const bool own_terminals = std::any_of(
      tree.peculiarities.begin(), tree.peculiarities.end(),
      [](const auto& item) { return item.kind == "terminal" && item.object.ends_with("ptmx"); });
  for (const Peculiarity& item : tree.peculiarities) {
    const std::string name = tree.name_of(item.pid);
    if (item.kind == "terminal" && !own_terminals) {
      findings.stop(fmt::format("{} uses the terminal {}, and there is none at the target", name,
                                item.object),
                    "start it with its input and output in files, or below screen or tmux, and "
                    "move that");
    } else if (item.kind == "device" && !options.external_files) {
      findings.stop(
          fmt::format("{} has the device {} open, whose state CRIU cannot move", name, item.object),
          "let it close the device first");
    } else if (item.kind == "lock" && !options.file_locks) {
      findings.stop(fmt::format("{} holds a lock on {}", name, item.object),
                    "give -- --file-locks (nobody else may need the lock meanwhile)");
    } else if (item.kind == "inotify" || item.kind == "fanotify") {
      if (options.force_irmap) continue;
      findings.warn(fmt::format("{} watches files ({})", name, item.kind),
                    "the watched paths have to be at the target; if CRIU cannot find their names, "
                    "give -- --force-irmap");
    } else if (item.kind == "socket") {
      findings.stop(
          fmt::format("{} has a socket of a kind that CRIU cannot move ({})", name, item.object),
          "let it close the socket first");
    } else if (item.kind == "anonymous file") {
      findings.stop(fmt::format("{} uses {}, which CRIU cannot move", name, item.object),
                    item.object == "[io_uring]" ? "start the program without io_uring"
                                                : "let it close this first");
    } else if (item.kind == "system v memory" && !tree.has_namespace("ipc")) {
      findings.stop(
          fmt::format("{} uses System V shared memory, which all of this node can see", name),
          "start it in an IPC namespace of its own (unshare --ipc), then it can be moved "
          "with that");
    } else if (item.kind == "ambiguous shared memory") {
      findings.stop(
          fmt::format("{} has shared memory with the number of its System V segment {}, and CRIU "
                      "would mix them up",
                      name, item.object),
          "start it again: it gets another number");
    } else if (item.kind == "ppmr mount") {
      findings.stop(fmt::format("{} has {} open, in a mount of ppmr's", name, item.object),
                    "let it close the file: the mount does not move");
    } else if (item.kind == "foreign mount" && !tree.container && !options.external_files) {
      findings.stop(fmt::format("{} has {} open from another mount namespace, where CRIU does not "
                                "find it",
                                name, item.object),
                    "start it with its input, output and working directory inside of its own "
                    "(nsenter --wd, </dev/null)");
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
        findings.stop(sentence + " but has another name", "give -- --link-remap");
    } else if (file.size_bytes > options.ghost_limit_bytes) {
      const uint64_t mebibytes = (file.size_bytes >> 20) + 1;
      findings.stop(sentence + ", so it has to travel with the checkpoint",
                    fmt::format("give -- --ghost-limit {}M", mebibytes));
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
      "give -- --tcp-established and bring their addresses to the target, or -- "
      "--tcp-close to drop them");
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
                  "give ppmr this capability there (containers often lack it)"});
    return;
  }
}

void check_tree(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  check_processes(options, tree, findings);
  check_peculiarities(options, tree, findings);
  check_deleted_files(options, tree, findings);
  check_connections(options, tree, findings);
}

}  // namespace ppmr
