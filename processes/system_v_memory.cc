#include "processes/system_v_memory.h"

#include <fstream>
#include <limits>

#include "processes/visit_namespace.h"

namespace ppmr {

Result<std::vector<uint64_t>> read_system_v_segments(pid_t pid) {
  // The kernel lists here the segments in the IPC namespace of the thread that opens the file.
  constexpr const char* kList = "/proc/sysvipc/shm";
  std::vector<uint64_t> identifiers;
  Status listed;
  const auto read_list = [&] {
    std::ifstream list(kList);
    if (!list) {
      listed = system_failure("open", kList);
      return;
    }
    const auto skip_line = [&] { list.ignore(std::numeric_limits<std::streamsize>::max(), '\n'); };
    skip_line();  // skips the column names
    for (int64_t key = 0, identifier = 0; list >> key >> identifier; skip_line()) {
      identifiers.push_back(static_cast<uint64_t>(identifier));
    }
  };
  if (auto visited = visit_namespace(pid, "ipc", read_list); !visited)
    return failure(visited.error());
  if (!listed) return failure(listed.error());
  return identifiers;
}

}  // namespace ppmr
