// Processes as /proc shows them: one reader for everybody. What it says is true for a moment only;
// a process that ends between two calls is ESRCH, never half an answer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

// /proc/PID/stat, see proc(5).
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
  uint64_t start_time_ticks = 0;  // since boot: with the pid, who it is
  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// /proc/PID/status.
struct ProcessStatus {
  uid_t real_uid = 0;
  uid_t effective_uid = 0;
  gid_t real_gid = 0;
  pid_t tracer = 0;
  int seccomp_mode = 0;  // 0: none, 1: strict, 2: filter
  int threads = 1;
  std::vector<pid_t> namespace_pids;  // the pid in each pid namespace, ours first
  uint64_t capabilities = 0;          // effective, one bit each
  uint64_t pending_signals = 0;       // of the first thread and of the process, bit 0 is signal 1
  uint64_t own_memory_bytes = 0;      // in memory or swapped out, without pages of files
  bool is_pending(int signal) const { return (pending_signals >> (signal - 1) & 1) != 0; }
};

// An open file: the number, and what the link in /proc/PID/fd says: "/x", "pipe:[7]".
struct Descriptor {
  int number = -1;
  std::string target;
};

// A line of /proc/PID/maps.
struct Mapping {
  bool writable = false;
  bool executable = false;
  bool shared = false;
  uint64_t size_bytes = 0;
  std::string device;  // "fd:01"
  uint64_t inode = 0;  // 0: no file
  std::string path;    // without the " (deleted)" behind it
  bool deleted = false;
};

Result<ProcessStat> parse_process_stat(std::string_view text);
ProcessStatus parse_process_status(std::string_view text);  // what is missing stays as it is above
std::vector<Mapping> parse_mappings(std::string_view text);

// Errors of all that follow: ESRCH when there is no such process (any more), EACCES when we may not
// look.
Result<std::string> read_process_file(pid_t pid, const std::string& name);
// The target of a link such as "exe", "cwd" or "ns/net".
Result<std::string> read_process_link(pid_t pid, const std::string& name);
Result<ProcessStat> read_process_stat(pid_t pid);
Result<ProcessStatus> read_process_status(pid_t pid);
Result<std::vector<Descriptor>> read_descriptors(pid_t pid);
Result<std::vector<Mapping>> read_mappings(pid_t pid);
Result<std::vector<pid_t>> read_threads(pid_t pid);
Result<std::string> read_command_line(pid_t pid);  // words separated by spaces
// Those that it can reach, as the kernel numbers them ("mnt_id" of an open file).
Result<std::set<int>> read_mount_ids(pid_t pid);

// All processes at this moment, by pid. One that ends meanwhile is not among them.
Result<std::vector<ProcessStat>> read_all_processes();

// The number in "pipe:[7]" and "socket:[7]"; 0 where `target` is not of this kind.
uint64_t inode_in(std::string_view target, std::string_view kind);

}  // namespace ppmr
