// Reads processes from /proc. A result is a snapshot. If the process ends during the call, the
// function fails with ESRCH and returns no partial result.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "processes/process_identity.h"

namespace ppmr {

// The fields of /proc/PID/stat, see proc(5).
struct ProcessStat {
  pid_t pid = 0;
  std::string name;
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  int terminal = 0;  // device number of the controlling terminal; 0: none
  bool kernel_thread = false;
  bool is_exiting = false;
  uint64_t start_time_ticks = 0;  // clock ticks since boot
  bool is_dead() const { return state == 'Z' || state == 'X'; }
  ProcessIdentity identity() const { return {pid, start_time_ticks}; }
};

// The fields of /proc/PID/status.
struct ProcessStatus {
  uid_t real_uid = 0;
  uid_t effective_uid = 0;
  gid_t real_gid = 0;
  pid_t tracer = 0;
  int seccomp_mode = 0;  // 0: none, 1: strict, 2: filter
  int threads = 1;
  std::vector<pid_t> namespace_pids;  // the pid in each pid namespace, first in the caller's
  uint64_t capabilities = 0;          // effective, one bit each
  uint64_t pending_signals = 0;       // pending for process or first thread; bit 0 is signal 1
  uint64_t own_memory_bytes = 0;      // resident or swapped out, without pages of files
  uint64_t locked_bytes = 0;          // mappings locked by mlock(2)
  uint64_t huge_bytes = 0;            // resident huge pages of hugetlbfs
  bool is_pending(int signal) const { return (pending_signals >> (signal - 1) & 1) != 0; }
};

// An open file: its number, and the target of its link in /proc/PID/fd: "/x", "pipe:[7]".
struct Descriptor {
  int number = -1;
  std::string target;
};

// A line of /proc/PID/maps.
struct Mapping {
  bool writable = false;
  bool executable = false;
  bool shared = false;
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  std::string device;  // "fd:01"
  uint64_t inode = 0;  // 0: no file
  std::string path;    // without the suffix " (deleted)"
  bool deleted = false;
};

Result<ProcessStat> parse_process_stat(std::string_view text);
ProcessStatus parse_process_status(std::string_view text);  // missing fields keep their default
std::vector<Mapping> parse_mappings(std::string_view text);
// Parses the text of /proc/PID/smaps_rollup. Counts the same pages as own_memory_bytes, but divides
// each page by the number of processes that share it.
uint64_t parse_memory_share_bytes(std::string_view text);

// Errors of all functions below: ESRCH when there is no such process, EACCES without permission.
Result<std::string> read_process_file(pid_t pid, const std::string& name);
// Returns the target of a link such as "exe", "cwd" or "ns/net".
Result<std::string> read_process_link(pid_t pid, const std::string& name);
Result<ProcessStat> read_process_stat(pid_t pid);
Result<ProcessStatus> read_process_status(pid_t pid);
Result<std::vector<Descriptor>> read_descriptors(pid_t pid);
Result<std::vector<Mapping>> read_mappings(pid_t pid);
Result<std::vector<pid_t>> read_threads(pid_t pid);
Result<std::string> read_command_line(pid_t pid);  // words separated by spaces
// Returns the ids of the mounts that the process can reach ("mnt_id" in /proc/PID/fdinfo).
Result<std::set<int>> read_mount_ids(pid_t pid);

// Returns all processes, sorted by pid. Skips processes that end during the call, and those that
// this process may not see. Other errors, for example EMFILE, return no partial result.
Result<std::vector<ProcessStat>> read_all_processes();

// Returns the process and its descendants, parents before their children, without zombies. Exact
// only while none of these processes can fork. Errors: ESRCH when there is no process `root`;
// EMFILE and others when part of the tree could not be read.
Result<std::vector<ProcessStat>> read_tree(pid_t root);

// Returns the number in "pipe:[7]" or "socket:[7]"; 0 if `target` is of another kind.
uint64_t inode_in(std::string_view target, std::string_view kind);

}  // namespace ppmr
