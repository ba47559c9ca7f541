#include "processes/system_v_objects.h"

#include <fmt/format.h>
#include <sys/msg.h>
#include <sys/sem.h>

namespace ppmr {
namespace {

union SemaphoreArgument {  // semctl(2)
  int value;
  semid_ds* set;
  unsigned short* values;
  seminfo* info;
};

void find_semaphores(const std::set<pid_t>& pids, std::vector<SystemVObject>& found) {
  seminfo info{};
  const int last = semctl(0, 0, SEM_INFO, SemaphoreArgument{.info = &info});
  for (int i = 0; i <= last; ++i) {
    semid_ds set{};
    const int id = semctl(i, 0, SEM_STAT, SemaphoreArgument{.set = &set});
    if (id < 0) continue;
    for (int n = 0; n < static_cast<int>(set.sem_nsems); ++n) {
      const pid_t user = semctl(id, n, GETPID);
      if (user <= 0 || !pids.contains(user)) continue;
      found.push_back({fmt::format("semaphore set {}", id), user});
      break;
    }
  }
}

void find_message_queues(const std::set<pid_t>& pids, std::vector<SystemVObject>& found) {
  msginfo info{};
  const int last = msgctl(0, MSG_INFO, reinterpret_cast<msqid_ds*>(&info));
  for (int i = 0; i <= last; ++i) {
    msqid_ds queue{};
    const int id = msgctl(i, MSG_STAT, &queue);
    if (id < 0) continue;
    for (const pid_t user : {queue.msg_lspid, queue.msg_lrpid}) {
      if (user <= 0 || !pids.contains(user)) continue;
      found.push_back({fmt::format("message queue {}", id), user});
      break;
    }
  }
}

}  // namespace

std::vector<SystemVObject> find_system_v_objects(const std::set<pid_t>& pids) {
  std::vector<SystemVObject> found;
  find_semaphores(pids, found);
  find_message_queues(pids, found);
  return found;
}

}  // namespace ppmr
