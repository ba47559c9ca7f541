// System V semaphores and message queues (sysvipc(7)) that processes use. A process holds only
// their numbers, and in the IPC namespace of the node they do not move with it: after a move its
// calls fail, or reach those of another program.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace ppmr {

struct SystemVObject {
  std::string name;  // "semaphore set 3", "message queue 7"
  pid_t pid = 0;     // the process that has used it
};

// Returns those of the caller's IPC namespace that one of the processes was the last to use, as far
// as the caller may read them. Who has used one before is not known. Threads: any.
std::vector<SystemVObject> find_system_v_objects(const std::set<pid_t>& pids);

}  // namespace ppmr
