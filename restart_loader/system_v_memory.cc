#include "restart_loader/system_v_memory.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "restart_loader/visit_namespace.h"

namespace ppmr {

std::vector<uint64_t> parse_system_v_segments(std::string_view text) {
  std::vector<uint64_t> identifiers;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);  // the names of the columns
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    int64_t key = 0;
    uint64_t identifier = 0;
    if (words >> key >> identifier) identifiers.push_back(identifier);
  }
  return identifiers;
}

Result<std::vector<uint64_t>> read_system_v_segments(pid_t pid) {
  // The kernel lists them for the IPC namespace of whoever opens this.
  constexpr const char* kList = "/proc/sysvipc/shm";
  Result<std::vector<uint64_t>> identifiers = failure(ESRCH, "");
  const auto look = [&] {
    std::ifstream list(kList);
    if (!list) {
      identifiers = system_failure("open", kList);
      return;
    }
    identifiers = parse_system_v_segments(std::string(std::istreambuf_iterator<char>(list), {}));
  };
  if (auto visited = visit_namespace(pid, "ipc", look); !visited) return failure(visited.error());
  return identifiers;
}

}  // namespace ppmr
