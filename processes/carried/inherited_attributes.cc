#include "processes/carried/inherited_attributes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/unique_fd.h"
#include "processes/carried/thread_attributes.h"
#include "processes/proc_files.h"
#include "processes/process_tree.h"

namespace ppmr {
namespace {

constexpr uint32_t kNodesMax = 1024;         // the most that Linux can have (CONFIG_NODES_SHIFT)
constexpr uint32_t kWeightedInterleave = 6;  // MPOL_WEIGHTED_INTERLEAVE, Linux 6.9
// PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE of linux/sched.h, in the flags of /proc/PID/stat:
// PR_SET_IO_FLUSHER sets both.
constexpr uint64_t kIoFlusherFlags = 0x00080000 | 0x00100000;
// PF_MCE_PROCESS and PF_MCE_EARLY: PR_MCE_KILL sets them.
constexpr uint64_t kOwnMemoryFailureFlag = 0x00000080;
constexpr uint64_t kEarlyMemoryFailureFlag = 0x08000000;
constexpr size_t kFlagsField = 9;
constexpr size_t kLineBytesMax = 512;
// A JVM has its heap in the first mapping, and 20 threads. The kernel inspected 1.4 GiB in 25 ms.
constexpr uint64_t kInspectedBytesMax = uint64_t{1} << 30;
constexpr size_t kAskedMax = 4;

constexpr const char* kPersonality = "personality";
constexpr const char* kIoFlusher = "I/O flusher flag";
constexpr const char* kMergesPages = "merging of equal pages (KSM)";
constexpr const char* kMemoryFailure = "signal for memory that has failed (PR_MCE_KILL)";
constexpr const char* kMemoryPolicy = "memory policy (NUMA)";

const std::array<std::pair<const char*, uint32_t>, 7> kModes = {
    {{"default", MPOL_DEFAULT},
     {"prefer (many)", MPOL_PREFERRED_MANY},  // before "prefer", its prefix
     {"prefer", MPOL_PREFERRED},
     {"bind", MPOL_BIND},
     {"interleave", MPOL_INTERLEAVE},
     {"local", MPOL_LOCAL},
     {"weighted interleave", kWeightedInterleave}}};

// Reads the first line of numa_maps. The kernel inspects all pages of a mapping that it lists, and
// lists further ones only for a read that has room left (seq_read_iter() in fs/seq_file.c of
// Linux). So the line is read in small pieces. The last piece may make the kernel list the second
// mapping.
std::string first_line_of_numa_maps(pid_t thread) {
  const std::string path = fmt::format("/proc/{}/numa_maps", thread);
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string line;
  std::array<char, 16> piece;
  while (line.size() < kLineBytesMax && line.find('\n') == std::string::npos) {
    const ssize_t n = file ? read(file.get(), piece.data(), piece.size()) : -1;
    if (n <= 0) break;  // CONFIG_NUMA is off, or the thread has ended
    line.append(piece.data(), static_cast<size_t>(n));
  }
  return line.substr(0, line.find('\n'));
}

// Returns whether it takes long to ask each thread of the process for its memory policy.
bool takes_long_to_ask(pid_t process, size_t threads) {
  const std::string path = fmt::format("/proc/{}/maps", process);
  std::ifstream maps(path);
  uint64_t inspected_bytes = 0;
  std::string line;
  for (int mapping = 0; mapping < 2 && std::getline(maps, line); ++mapping) {
    uint64_t start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &start, &end) == 2) {
      inspected_bytes += end - start;
    }
  }
  return inspected_bytes > kInspectedBytesMax / std::max(threads, size_t{1});
}

uint64_t flags_of(pid_t thread) {
  const std::string stat = read_process_file(thread, "stat").value_or("");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (size_t i = 3; i < kFlagsField && fields >> field; ++i) continue;
  uint64_t flags = 0;
  return fields >> flags ? flags : 0;
}

uint32_t memory_failure_of(uint64_t flags) {
  if ((flags & kOwnMemoryFailureFlag) == 0) return 0;
  return 1 + ((flags & kEarlyMemoryFailureFlag) != 0 ? PR_MCE_KILL_EARLY : PR_MCE_KILL_LATE);
}

bool merges_pages(pid_t process) {
  const std::string stat = read_process_file(process, "ksm_stat").value_or("");
  return stat.find("ksm_merge_any: yes") != std::string::npos;
}

std::optional<carried::MemoryPolicy> read_memory_policy(pid_t thread) {
  const std::string line = first_line_of_numa_maps(thread);
  const size_t at = line.find(' ');
  return at == std::string::npos ? std::nullopt : parse_memory_policy(line.substr(at + 1));
}

// Returns all but the memory policy. nullopt: the thread has ended.
std::optional<carried::Inherited> read_of(pid_t thread) {
  carried::Inherited read;
  const auto personality = read_process_file(thread, "personality");
  if (!personality) return std::nullopt;
  read.set_personality(static_cast<uint32_t>(std::strtoul(personality->c_str(), nullptr, 16)));
  const uint64_t flags = flags_of(thread);
  read.set_is_io_flusher((flags & kIoFlusherFlags) == kIoFlusherFlags);
  read.set_memory_failure(memory_failure_of(flags));
  read.set_merges_pages(merges_pages(thread));
  return read;
}

bool same_policy(const carried::MemoryPolicy& a, const carried::MemoryPolicy& b) {
  return a.mode() == b.mode() &&
         std::equal(a.node().begin(), a.node().end(), b.node().begin(), b.node().end());
}

}  // namespace

std::optional<carried::MemoryPolicy> parse_memory_policy(const std::string& line) {
  for (const auto& [name, mode] : kModes) {
    if (!line.starts_with(name)) continue;
    std::string rest = line.substr(std::string(name).size());
    uint32_t flags = 0;
    for (const auto& [flag, value] : {std::pair{"=static", MPOL_F_STATIC_NODES},
                                      std::pair{"=relative", MPOL_F_RELATIVE_NODES}}) {
      if (!rest.starts_with(flag)) continue;
      flags = static_cast<uint32_t>(value);
      rest = rest.substr(std::string(flag).size());
    }
    if (!rest.empty() && rest[0] != ':' && rest[0] != ' ' && rest[0] != '\n') continue;
    carried::MemoryPolicy policy;
    policy.set_mode(mode | flags);
    if (rest.starts_with(':')) {
      for (const uint32_t node : parse_cpus(rest.substr(1, rest.find_first_of(" \n") - 1))) {
        if (node < kNodesMax) policy.add_node(node);
      }
    }
    return policy;
  }
  return std::nullopt;
}

std::vector<std::string> unlike(const carried::Inherited& a, const carried::Inherited& b) {
  std::vector<std::string> names;
  if (a.personality() != b.personality()) names.emplace_back(kPersonality);
  if (a.is_io_flusher() != b.is_io_flusher()) names.emplace_back(kIoFlusher);
  if (a.merges_pages() != b.merges_pages()) names.emplace_back(kMergesPages);
  if (a.memory_failure() != b.memory_failure()) names.emplace_back(kMemoryFailure);
  if (!same_policy(a.memory_policy(), b.memory_policy())) {
    names.emplace_back(kMemoryPolicy);
  }
  return names;
}

Result<InheritedAttributes> read_inherited(const std::vector<ProcessIdentity>& tasks,
                                           const carried::Inherited* before) {
  InheritedAttributes read;
  bool is_first = true;
  std::set<std::string> differs;
  for (const ProcessIdentity& task : tasks) {
    const auto threads = read_threads(task.pid);
    if (!threads) return failure(threads.error());
    size_t asked = threads->size();
    if (takes_long_to_ask(task.pid, asked)) asked = before != nullptr ? 0 : kAskedMax;
    std::optional<carried::MemoryPolicy> policy;
    if (before != nullptr && before->has_memory_policy()) policy = before->memory_policy();
    for (const pid_t thread : *threads) {
      auto own = read_of(thread);
      if (!own) continue;
      if (asked > 0) {
        policy = read_memory_policy(thread);
        --asked;
      }
      if (policy) *own->mutable_memory_policy() = *policy;
      if (is_first) read.agreed = *own;
      is_first = false;
      for (std::string& name : unlike(read.agreed, *own)) differs.insert(std::move(name));
    }
  }
  for (const std::string& name : differs) {
    if (name == kPersonality) read.agreed.clear_personality();
    if (name == kIoFlusher) read.agreed.clear_is_io_flusher();
    if (name == kMergesPages) read.agreed.clear_merges_pages();
    if (name == kMemoryFailure) read.agreed.clear_memory_failure();
    if (name == kMemoryPolicy) read.agreed.clear_memory_policy();
    read.lost.push_back(name + ", in which its tasks differ");
  }
  // CRIU's own mappings would become executable, too.
  if ((read.agreed.personality() & READ_IMPLIES_EXEC) != 0) {
    read.agreed.clear_personality();
    read.lost.push_back(std::string(kPersonality) + ", which makes all of its data executable");
  }
  return read;
}

std::string inherited_text(const carried::Inherited& wanted, const std::string& nodes) {
  if (unlike(wanted, carried::Inherited()).empty()) return "";
  uint32_t mode = wanted.memory_policy().mode();
  const std::set<uint32_t> asked(wanted.memory_policy().node().begin(),
                                 wanted.memory_policy().node().end());
  const std::set<uint32_t> chosen = choose_cpus(asked, parse_cpus(nodes));
  if (!asked.empty() && chosen.empty()) mode = MPOL_DEFAULT;
  std::string text =
      fmt::format("{} {} {} {} {}", wanted.personality(), int{wanted.is_io_flusher()},
                  int{wanted.merges_pages()}, wanted.memory_failure(), mode);
  for (const uint32_t node : chosen) text += fmt::format(" {}", node);
  return text + "\n";
}

}  // namespace ppmr
