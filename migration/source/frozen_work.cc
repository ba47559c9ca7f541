#include "migration/source/frozen_work.h"

#include <algorithm>

#include "processes/files/segment_rounds.h"
#include "processes/proc_files.h"

namespace ppmr {

FrozenWork frozen_work_of(pid_t root) {
  FrozenWork work{.processes = 0, .threads = 0};
  const auto tree = read_tree(root);
  if (!tree) return work;
  for (const ProcessStat& process : *tree) {
    const auto status = read_process_status(process.pid);
    ++work.processes;
    work.threads += status ? static_cast<size_t>(std::max(status->threads, 1)) : 1;
    if (!status) continue;
    // Locked mappings need not be in use.
    work.sent_bytes += std::min(status->locked_bytes, status->own_memory_bytes);
    work.sent_bytes += status->huge_bytes;
  }
  const auto segments = open_shared_segments(root);
  if (!segments) return work;
  for (const SharedSegment& segment : *segments) work.compared_bytes += segment.data_bytes;
  return work;
}

}  // namespace ppmr
