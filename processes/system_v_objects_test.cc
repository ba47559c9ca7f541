#include "processes/system_v_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/msg.h>
#include <sys/sem.h>

#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::Contains;
using testing::IsEmpty;

std::vector<std::string> names(const std::vector<SystemVObject>& found) {
  std::vector<std::string> names;
  for (const SystemVObject& object : found) names.push_back(object.name);
  return names;
}

class SystemVObjects : public testing::Test {
 protected:
  ~SystemVObjects() override {
    semctl(semaphores_, 0, IPC_RMID);
    msgctl(queue_, IPC_RMID, nullptr);
  }
  const int semaphores_ = semget(IPC_PRIVATE, 2, 0600);
  const int queue_ = msgget(IPC_PRIVATE, 0600);
};

TEST_F(SystemVObjects, IncludeObjectsThatTheProcessesUse) {
  ASSERT_GE(semaphores_, 0);
  ASSERT_GE(queue_, 0);
  const TestProcess user([this] {
    sembuf raise{.sem_num = 1, .sem_op = 1, .sem_flg = 0};
    if (semop(semaphores_, &raise, 1) != 0) abort();
    const long message[2] = {1, 7};
    if (msgsnd(queue_, message, sizeof(long), 0) != 0) abort();
  });
  const auto found = names(find_system_v_objects({user.pid()}));
  EXPECT_THAT(found, Contains("semaphore set " + std::to_string(semaphores_)));
  EXPECT_THAT(found, Contains("message queue " + std::to_string(queue_)));
}

TEST_F(SystemVObjects, DoNotIncludeObjectsOfAnotherProcess) {
  const TestProcess stranger;
  EXPECT_THAT(find_system_v_objects({stranger.pid()}), IsEmpty());
}

}  // namespace
}  // namespace ppmr
