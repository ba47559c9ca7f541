#include "migration/source/frozen_work.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "processes/files/segment_rounds.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Returns the size of the memory that devices may write. It counts as written when the devices are
// released, at the end of the rounds (LiveMemory::expect_release_of()).
uint64_t pinned_bytes(pid_t pid) {
  constexpr std::string_view kPinned = "\nVmPin:";
  const auto status = read_process_file(pid, "status");
  const size_t at = status ? status->find(kPinned) : std::string::npos;
  if (at == std::string::npos) return 0;
  return std::strtoull(status->c_str() + at + kPinned.size(), nullptr, 10) * 1024;
}

// Returns the size of the segments that are not in `counted` yet. Not all of their pages need be in
// use.
uint64_t system_v_bytes_of(pid_t pid, std::set<uint64_t>& counted) {
  const auto mappings = read_mappings(pid);
  uint64_t bytes = 0;
  for (const Mapping& mapping : mappings.value_or(std::vector<Mapping>())) {
    if (!mapping.path.starts_with("/SYSV") || !mapping.deleted) continue;
    if (counted.insert(mapping.inode).second) bytes += mapping.size_bytes;
  }
  return bytes;
}

}  // namespace

std::vector<FrozenMemory> frozen_memory_of(pid_t root) {
  std::vector<FrozenMemory> found;
  std::set<uint64_t> segments;
  const auto tree = read_tree(root);
  if (!tree) return found;
  for (const ProcessStat& process : *tree) {
    const auto status = read_process_status(process.pid);
    if (!status) continue;
    const auto add = [&](const char* kind, uint64_t bytes) {
      if (bytes > 0) found.push_back({process.pid, process.name, kind, bytes});
    };
    // Not all pages of locked mappings need be in use.
    add("locked memory", std::min(status->locked_bytes, status->own_memory_bytes));
    add("registered memory", std::min(pinned_bytes(process.pid), status->own_memory_bytes));
    add("huge pages", status->huge_bytes);
    add("System V shared memory", system_v_bytes_of(process.pid, segments));
  }
  return found;
}

FrozenWork frozen_work_of(pid_t root) {
  FrozenWork work{.processes = 0, .threads = 0};
  const auto tree = read_tree(root);
  if (!tree) return work;
  for (const ProcessStat& process : *tree) {
    const auto status = read_process_status(process.pid);
    ++work.processes;
    work.threads += status ? static_cast<size_t>(std::max(status->threads, 1)) : 1;
  }
  for (const FrozenMemory& memory : frozen_memory_of(root)) work.sent_bytes += memory.bytes;
  const auto segments = open_shared_segments(root);
  if (!segments) return work;
  for (const SharedSegment& segment : *segments) work.compared_bytes += segment.data_bytes;
  return work;
}

}  // namespace ppmr
