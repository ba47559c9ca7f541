#include "migration/epochs/epoch_on_disk.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using enum MigrationState;

EpochState state_of(uint64_t number, pid_t root = 17) {
  EpochState state;
  state.name = "db";
  state.peer = "one";
  state.run = std::string(32, 'a');
  state.tree = {"node", "boot", root, 4711, "redis"};
  state.newest.number = number;
  return state;
}

EpochOnDisk written(uint64_t number) {
  return {.file = "/keep/db.kept", .run = std::string(32, 'a'), .number = number};
}

TEST(EpochOnDisk, IsReadAsItWasPacked) {
  EpochOnDisk on_disk = written(3);
  on_disk.frozen_ns = 5;
  on_disk.error = "the disk is full";
  const auto again = parse_epoch_on_disk(to_json(on_disk));
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, on_disk);
  EXPECT_FALSE(parse_epoch_on_disk(nlohmann::json::object()));
  EXPECT_FALSE(parse_epoch_on_disk(nlohmann::json()));
}

TEST(EpochOnDisk, OnlyANewerEpochIsWritten) {
  EXPECT_TRUE(is_to_write(state_of(1), {}, {}));
  EXPECT_TRUE(is_to_write(state_of(4), {}, written(2))) << "3 is skipped";
  EXPECT_FALSE(is_to_write(state_of(4), {}, written(4)));
  EXPECT_FALSE(is_to_write(state_of(0), {}, {})) << "the first has not arrived";
}

TEST(EpochOnDisk, EpochOfANewRunIsWrittenWhateverItsNumber) {
  EpochState state = state_of(4);
  state.run = std::string(32, 'b');
  EXPECT_TRUE(is_to_write(state, {}, written(4)));
  EXPECT_TRUE(is_to_write(state, {}, written(9)));
}

TEST(EpochOnDisk, EpochOfATreeThatRunsHereIsNotWritten) {
  for (const auto decided : {kRunning, kCommitted, kFinished}) {
    EXPECT_FALSE(is_to_write(state_of(4), decided, written(3)));
  }
  EXPECT_TRUE(is_to_write(state_of(4), kRestoring, written(3)));
  EXPECT_TRUE(is_to_write(state_of(4), kAborted, written(3)));
}

TEST(EpochOnDisk, EpochOfATreeThatRollsBackIsNotWritten) {
  EpochState state = state_of(4);
  state.rolls_back = true;
  EXPECT_FALSE(is_to_write(state, {}, {}));
}

TEST(EpochOnDisk, CopyIsNotWritten) {
  EpochState state = state_of(4);
  state.is_copy = true;
  EXPECT_FALSE(is_to_write(state, {}, {}));
}

TEST(EpochOnDisk, WrittenEpochReplacesTheOneBeforeAlthoughNewerOnesHaveArrived) {
  EXPECT_TRUE(may_replace(state_of(4), state_of(4), {}));
  EXPECT_TRUE(may_replace(state_of(4), state_of(6), kAborted));
}

TEST(EpochOnDisk, EpochThatWasForgottenMeanwhileIsDropped) {
  EXPECT_FALSE(may_replace(state_of(4), {}, {}));
  EXPECT_FALSE(may_replace(state_of(4), state_of(0), {}));
  EXPECT_FALSE(may_replace(state_of(4), state_of(1, 18), {})) << "another process has the name";
  EXPECT_FALSE(may_replace(state_of(4), state_of(4), kRunning)) << "it was taken over";
}

TEST(EpochOnDisk, ReturnsToAMemoryThatHasLostIt) {
  EXPECT_EQ(judge_return(state_of(4), {}, false), Return::kToMemory);
  EXPECT_EQ(judge_return(state_of(4), state_of(0), false), Return::kToMemory)
      << "its source has opened the name again";
}

TEST(EpochOnDisk, DoesNotReplaceAnEpochInMemory) {
  EXPECT_EQ(judge_return(state_of(4), state_of(2), false), Return::kNone);
  EXPECT_EQ(judge_return(state_of(4), state_of(0, 18), false), Return::kNone);
  EpochState foreign = state_of(0);
  foreign.peer = "three";
  EXPECT_EQ(judge_return(state_of(4), foreign, false), Return::kNone);
}

TEST(EpochOnDisk, TreeThatWasTakenOverDoesNotReturn) {
  EXPECT_EQ(judge_return(state_of(4), {}, true), Return::kRemove);
  EXPECT_EQ(judge_return(state_of(4), state_of(0), true), Return::kRemove);
}

}  // namespace
}  // namespace ppmr
