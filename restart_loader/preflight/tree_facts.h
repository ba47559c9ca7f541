// What a tree of processes needs of the node that it runs on: what has to be the same elsewhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "restart_loader/preflight/container_facts.h"
#include "restart_loader/processes/process_tree.h"
#include "restart_loader/processes/sockets.h"

namespace ppmr {

// Files up to this size are compared by their SHA-256, larger ones by size, build ID and time.
inline constexpr uint64_t kDigestedSizeMaxBytes = 64 << 20;

// A file, directory or FIFO that a tree has open, mapped, or as its working directory.
struct FileFact {
  std::string path;        // as the tree sees it
  std::string type;        // "file", "directory", "fifo", "other"
  std::string filesystem;  // "ext4", "nfs4"
  uint64_t size_bytes = 0;
  uint32_t mode = 0;        // permission bits
  uint32_t links = 0;       // names it still has
  int64_t modified_ns = 0;  // CLOCK_REALTIME
  // Both the same on two nodes: the same file of a file system that they share.
  uint64_t inode = 0;
  std::string filesystem_id;
  std::string digest;    // SHA-256, hexadecimal; empty: not taken
  std::string build_id;  // of programs and libraries
  bool mapped = false;
  bool mapped_for_writing = false;  // what is written into the memory is written into the file
  bool writable = false;            // open for writing, or mapped shared and writable
  bool append_only = false;         // only ever opened to append
  bool deleted = false;             // has no name any more: it travels with the checkpoint
  pid_t pid = 0;                    // one that uses it
};

// Something about a process that CRIU treats in a special way, or not at all.
struct Peculiarity {
  // "terminal", "device", "inotify", "fanotify", "lock", "socket" (of an unusual family), "system v
  // memory", "ambiguous shared memory" (CRIU would mix it up with a System V segment), "anonymous
  // file" (io_uring and the like), "ppmr mount", "foreign mount" (a file opened in a mount
  // namespace that is not the tree's)
  std::string kind;
  std::string object;  // "/dev/pts/3", "[io_uring]", "SCTP"
  pid_t pid = 0;
};

struct ProcessFact {
  pid_t pid = 0;
  std::string name;
  std::vector<pid_t> threads;         // with the process itself
  std::vector<pid_t> namespace_pids;  // in each pid namespace, ours first
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  int terminal = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t tracer = 0;
  int seccomp_mode = 0;
  std::string executable;
  std::string working_directory;
  std::string root_directory;
  std::string cgroup;  // the lines of /proc/PID/cgroup
  std::map<std::string, std::string> hard_limits;
};

struct TreeFacts {
  pid_t root = 0;
  std::string name;                    // of the root
  std::vector<ProcessFact> processes;  // the root first
  std::vector<FileFact> files;
  std::vector<InternetSocket> sockets;
  std::vector<Peculiarity> peculiarities;
  std::vector<std::string> own_namespaces;  // of the root, unlike ours: "net", "mnt", ...
  uint64_t memory_bytes = 0;                // at most so much goes over: shared pages count twice
  std::optional<ContainerFacts> container;  // where the tree is one of runc's

  bool has_namespace(const std::string& name) const;
  bool contains(pid_t pid) const;
  // Whether `files` has paths of this node: of a mount namespace that we do not know it has not.
  bool files_are_known_here() const { return container.has_value() || !has_namespace("mnt"); }
  std::string name_of(pid_t pid) const;  // "412 (worker)"
};

// Looks at a tree without touching it. Errors: ESRCH when its root has ended, EACCES.
Result<TreeFacts> gather_tree_facts(const ProcessTree& tree);
// The same tree as a container: its files get the paths that they have on this node.
void set_container(TreeFacts& tree, ContainerFacts container);

// JSON with the members' names. from_json() may throw nlohmann::json::exception.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileFact, path, type, filesystem, size_bytes, mode, links,
                                   modified_ns, inode, filesystem_id, digest, build_id, mapped,
                                   writable, append_only, deleted, pid, mapped_for_writing)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Peculiarity, kind, object, pid)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InternetSocket, protocol, local_address, local_port,
                                   remote_address, remote_port, state, inode)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProcessFact, pid, name, threads, namespace_pids, parent, group,
                                   session, terminal, uid, gid, tracer, seccomp_mode, executable,
                                   working_directory, root_directory, cgroup, hard_limits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TreeFacts, root, name, processes, files, sockets, peculiarities,
                                   own_namespaces, memory_bytes)

}  // namespace ppmr
