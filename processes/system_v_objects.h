// System V semaphores and message queues (sysvipc(7)) that processes use. A process has only their
// numbers. If it uses the IPC namespace of the node, the objects do not move with it. After a move
// its calls fail, or reach objects of another program.
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

// Returns the objects in the caller's IPC namespace that one of the processes was the last to use.
// Skips objects that the caller may not read. The kernel does not record earlier users. Threads:
// any.
std::vector<SystemVObject> find_system_v_objects(const std::set<pid_t>& pids);

}  // namespace ppmr
