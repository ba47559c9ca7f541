#include "processes/visit_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <thread>

#include "base/unique_fd.h"
#include "base/without_exceptions.h"
#include "processes/proc_files.h"

namespace ppmr {

Status visit_namespace(pid_t pid, const std::string& name, const std::function<void()>& work) {
  const auto theirs = read_process_link(pid, "ns/" + name);
  if (!theirs) return failure(theirs.error());
  const auto ours = read_process_link(getpid(), "ns/" + name);
  if (!ours) return failure(ours.error());
  if (*theirs == *ours) {
    work();
    return {};
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/" + name;
  const UniqueFd entrance(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!entrance) return system_failure("open", path);
  Status entered;
  const auto visit = [&]() -> Status {
    if (setns(entrance.get(), 0) != 0) return system_failure("enter the namespace", path);
    work();
    return {};
  };
  std::thread([&] { entered = without_exceptions(visit); }).join();
  return entered;
}

}  // namespace ppmr
