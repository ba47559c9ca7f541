// What a tree requires of its node, and must also find at the target.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "preflight/container_facts.h"
#include "preflight/manager_facts.h"
#include "preflight/rdma_release/rdma_check.h"
#include "processes/carried/lost_attributes.h"
#include "processes/process_tree.h"
#include "processes/sockets.h"

namespace ppmr {

// The preflight compares files up to this size by their SHA-256, larger files by size and by build
// ID or modification time.
inline constexpr uint64_t kDigestedSizeMaxBytes = 64 << 20;

// A file, directory or FIFO that a tree has open, mapped, or as its working directory.
struct FileFact {
  std::string path;        // in the tree's mount namespace
  std::string type;        // "file", "directory", "fifo", "other"
  std::string filesystem;  // "ext4", "nfs4"
  uint64_t size_bytes = 0;
  uint32_t mode = 0;        // permission bits
  uint32_t links = 0;       // number of names
  int64_t modified_ns = 0;  // CLOCK_REALTIME
  // On two nodes that share a file system, files with equal `inode` and `filesystem_id` are one
  // file.
  uint64_t inode = 0;
  std::string filesystem_id;
  std::string digest;    // SHA-256 in hexadecimal; empty: not computed
  std::string build_id;  // build ID of a program or library; empty: none
  bool mapped = false;
  bool mapped_for_writing = false;  // mapped MAP_SHARED: writes to the memory go to the file
  bool writable = false;            // open for writing, or mapped shared and writable
  bool append_only = false;         // every writer appends
  bool lock_excludes = false;       // a process holds a lock that no other process can take, too
  bool lock_is_of_process = false;  // this lock belongs to the process itself (F_SETLK)
  bool lock_is_lease = false;       // this lock is a lease
  bool deleted = false;             // the name was deleted; CRIU puts the file in the checkpoint
  pid_t pid = 0;                    // a process that uses the file
};

// Something about a process that CRIU restores only with an option, or not at all.
struct Peculiarity {
  // "terminal", "device", "inotify", "fanotify", "lock", "socket" (of an unusual family), "system v
  // memory", "ambiguous shared memory" (CRIU confuses it with a System V segment), "anonymous file"
  // (io_uring, for example), "message queue" (of POSIX), "system v object" (a semaphore set or
  // message queue), "ppmr mount", "foreign mount" (a file opened in another mount namespace),
  // "nested namespace" (a descendant is not in the root's namespace), "foreign process" (a pidfd of
  // a process outside of the tree), "common memory" (with its parent, CLONE_VM), "tcp backlog",
  // "unix backlog", "unix backlog from elsewhere", "unix backlog to elsewhere" (see
  // processes/backlogs.h)
  std::string kind;
  std::string object;  // "/dev/pts/3", "[io_uring]", "SCTP"
  pid_t pid = 0;
  std::string external;  // value for CRIU's --external: "dev[8/1]", "file[1f:2a]"; empty: none
};

struct ProcessFact {
  pid_t pid = 0;
  std::string name;
  std::vector<pid_t> threads;         // thread ids, including the first thread
  std::vector<pid_t> namespace_pids;  // pid in each pid namespace, first in this node's
  pid_t session = 0;
  uid_t uid = 0;
  pid_t tracer = 0;
  std::string freezer;  // the file that freezes its control group; empty: not frozen
  int seccomp_mode = 0;
  // The results of find_restrictions(). `was_asked` is false if a thread did not stop, or if ppmr
  // cannot trace it.
  bool was_asked = true;
  bool landlock_is_unknown = false;  // it is in another user namespace, or ppmr can start no helper
  bool is_landlocked = false;
  bool denies_write_execute = false;
  bool has_keyring = false;
  bool dispatches_calls = false;
  bool faults_on_cpu_queries = false;
  bool has_segments = false;
  LostAttributes lost;
  std::string working_directory;
  std::string root_directory;
  std::map<std::string, std::string> hard_limits;
};

struct TreeFacts {
  pid_t root = 0;
  std::string name;                    // name of the root's program
  std::vector<ProcessFact> processes;  // the root comes first
  std::vector<FileFact> files;
  std::vector<InternetSocket> sockets;
  std::vector<Peculiarity> peculiarities;
  std::vector<pid_t> rdma_releasers;         // processes that registered with jobs/rdma_release.h
  std::vector<RdmaCheck> rdma_checks;        // answers of the releasers to "check"
  std::vector<std::string> own_namespaces;   // namespaces that the root does not share with ppmr
  std::vector<std::string> lost_attributes;  // see InheritedAttributes::lost
  uint64_t memory_bytes = 0;                 // pages that two processes share count twice
  uint64_t distinct_memory_bytes = 0;        // estimate; pages that the tree shares count once
  std::optional<ManagerFacts> manager;       // who may start the tree again
  std::optional<ContainerFacts> container;   // set for a tree that runc started

  bool has_namespace(const std::string& name) const;
  bool contains(pid_t pid) const;
  // Returns whether the paths in `files` are valid in this node's mount namespace.
  bool has_host_paths() const { return container.has_value() || !has_namespace("mnt"); }
  std::string name_of(pid_t pid) const;  // "412 (worker)"
};

// Digests of files that several trees use, so that each file is read once. Threads: one.
using KnownDigests = std::map<std::tuple<uint64_t, uint64_t, uint64_t, int64_t, int64_t>,
                              std::string>;  // key: device, inode, size, mtime, ctime

// Gathers the facts of a tree. Only reads; changes no process. Errors: ESRCH when the root has
// ended, EACCES.
Result<TreeFacts> gather_tree_facts(const ProcessTree& tree, KnownDigests& known);
Result<TreeFacts> gather_tree_facts(const ProcessTree& tree);
// Records restrictions of the threads that the kernel shows nowhere. Stops each thread for a
// moment, and injects system calls into it (landlock_probe.h, asked_attributes.h in
// processes/memory).
void find_restrictions(TreeFacts& tree);
// Marks the tree as a container and replaces the paths of its files by their paths on this node.
void set_container(TreeFacts& tree, ContainerFacts container);

// from_json() throws nlohmann::json::exception.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileFact, path, type, filesystem, size_bytes, mode, links,
                                   modified_ns, inode, filesystem_id, digest, build_id, mapped,
                                   writable, append_only, deleted, pid, mapped_for_writing)

}  // namespace ppmr
