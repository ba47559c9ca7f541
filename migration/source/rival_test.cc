#include "migration/source/rival.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_directory.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;
using testing::HasSubstr;

constexpr ProcessIdentity kServer{40, 400}, kWorker{41, 410}, kShell{30, 300}, kOther{50, 500};
constexpr int64_t kSecondNs = 1'000'000'000;

// The shell has started the server, which has started the worker.
std::vector<ProcessIdentity> family(const ProcessIdentity& root) {
  if (root == kShell) return {kShell, kServer, kWorker};
  if (root == kServer) return {kServer, kWorker};
  return {root};
}

OwnershipRecord moving(const ProcessIdentity& root, MigrationState state = kSealed) {
  OwnershipRecord record;
  record.id = random_migration_id();
  record.boot_id = "now";
  record.endpoint = nlohmann::json::object();
  record.trees.resize(1);
  record.trees[0].root = root.pid;
  record.trees[0].root_start_time = root.start_time;
  record.trees[0].name = "server";
  record.trees[0].checkpoint = "server-40";
  take_to(record, state, 2 * kSecondNs, 5 * kSecondNs);
  return record;
}

bool rivals(const OwnershipRecord& record, const ProcessIdentity& root) {
  return find_rival({record}, {root}, "now", family).has_value();
}

TEST(Rival, IsAMigrationOfTheSameTreeOrOfAPartOfIt) {
  for (const ProcessIdentity& root : {kShell, kServer, kWorker}) {
    EXPECT_TRUE(rivals(moving(kServer), root)) << root.pid;
  }
  EXPECT_FALSE(rivals(moving(kServer), kOther));
  EXPECT_FALSE(rivals(moving(kServer), {kServer.pid, 401})) << "another process with this pid";
}

TEST(Rival, TaskThatIsKilledAlreadyIsFoundInTheRecord) {
  OwnershipRecord record = moving({39, 390}, kCommitted);
  EXPECT_FALSE(rivals(record, kWorker));
  record.trees[0].tasks = {kWorker};
  EXPECT_TRUE(rivals(record, kWorker));
}

TEST(Rival, IsNotOverAndOfThisBoot) {
  for (const MigrationState state : {kPreparing, kDumping, kFrozen, kSealed, kCommitted}) {
    EXPECT_TRUE(rivals(moving(kServer, state), kServer)) << to_string(state);
  }
  EXPECT_FALSE(rivals(moving(kServer, kAborted), kServer));
  EXPECT_FALSE(rivals(moving(kServer, kFinished), kServer));
  OwnershipRecord earlier = moving(kServer);
  earlier.boot_id = "before";
  EXPECT_FALSE(rivals(earlier, kServer));
}

TEST(Rival, IsDescribedByItsIdStateAndTimes) {
  OwnershipRecord record = moving(kServer);
  record.coordinator = {77, 1};
  EXPECT_EQ(describe_rival(record, 9 * kSecondNs),
            "migration " + record.id +
                " moves process 40 (server): sealed for 4 s, begun 7 s ago by pid 77");
}

TEST(Rival, ThatIsLiveCopiesMemory) {
  OwnershipRecord record = moving(kServer, kDumping);
  record.plan.is_live = true;
  EXPECT_THAT(describe_rival(record, 9 * kSecondNs), HasSubstr("copying memory for"));
}

class RivalStoreTest : public testing::Test {
 protected:
  RecordStore open() const { return *RecordStore::open(directory_.path() + "/state"); }
  static OwnershipRecord of(const ProcessIdentity& root) {
    OwnershipRecord record = moving(root, kPreparing);
    record.boot_id = read_boot_id();
    record.coordinator = identify_self();
    return record;
  }

  const TestDirectory directory_;
};

TEST_F(RivalStoreTest, ExactlyOneOfManyThatBeginAtOnceSucceeds) {
  const RecordStore store = open();
  std::atomic<int> created = 0, refused = 0;
  std::vector<std::thread> coordinators;
  for (int i = 0; i < 8; ++i) {
    coordinators.emplace_back([&] {
      const auto record = create_without_rivals(store, of(identify_self()));
      if (record) ++created;
      if (!record && record.error().errno_value == EALREADY) ++refused;
    });
  }
  for (std::thread& coordinator : coordinators) coordinator.join();
  EXPECT_EQ(created, 1);
  EXPECT_EQ(refused, 7);
}

TEST_F(RivalStoreTest, NextOneSucceedsWhenTheFirstHasAborted) {
  const RecordStore store = open();
  const auto first = create_without_rivals(store, of(identify_self()));
  ASSERT_TRUE(first) << first.error().message;
  const Status busy = check_rivals(store, {identify_self()});
  ASSERT_FALSE(busy);
  EXPECT_THAT(busy.error().message, HasSubstr(first->id));
  EXPECT_THAT(busy.error().message, HasSubstr("ppmr migrate --cancel ID"));
  ASSERT_TRUE(advance(store, first->id, MigrationRole::kSource, kAborted));
  const auto second = create_without_rivals(store, of(identify_self()));
  EXPECT_TRUE(second) << second.error().message;
}

TEST_F(RivalStoreTest, ProcessThatHasMovedIsSaidToRunAtTheTarget) {
  const RecordStore store = open();
  const pid_t child = fork();
  if (child == 0) pause(), _exit(0);
  const ProcessIdentity process = *identify(child);
  OwnershipRecord record = of(process);
  record.peer = "two";
  const auto first = create_without_rivals(store, record);
  ASSERT_TRUE(first) << first.error().message;
  for (const MigrationState state : {kDumping, kFrozen, kSealed, kCommitted, kFinished}) {
    ASSERT_TRUE(advance(store, first->id, MigrationRole::kSource, state));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto late = create_without_rivals(store, of(process));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().errno_value, EALREADY);
  EXPECT_THAT(late.error().message, HasSubstr("has moved to two with migration " + first->id));
}

}  // namespace
}  // namespace ppmr
