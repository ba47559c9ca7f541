#include "jobs/agent/host_pool.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

constexpr uid_t kRoot = 0, kUser = 1000, kOther = 1001;

struct Pool : testing::Test {
  Pool() { std::filesystem::remove_all(directory); }
  // Returns the pool as a new agent of the host reads it.
  HostPool open() const { return HostPool(*RecordFiles::open(directory)); }

  const std::string directory = testing::TempDir() + "/host_pool_test";
};

TEST_F(Pool, HostIsInThePoolUntilItIsEvacuated) {
  EXPECT_FALSE(open().report().is_out_for(kUser));
  EXPECT_EQ(open().report().changed_ns, 0);
}

TEST_F(Pool, HostThatRootEvacuatedIsOutForAllAlsoAfterARestart) {
  ASSERT_TRUE(open().take_out(kRoot));
  EXPECT_TRUE(open().report().is_out_for(kRoot));
  EXPECT_TRUE(open().report().is_out_for(kUser));
  EXPECT_EQ(open().give_back(kUser).error().errno_value, EPERM);
  ASSERT_TRUE(open().give_back(kRoot));
  EXPECT_FALSE(open().report().is_out_for(kUser));
}

TEST_F(Pool, HostThatAUserEvacuatedIsOutForTheJobsOfThatUserOnly) {
  ASSERT_TRUE(open().take_out(kUser));
  EXPECT_TRUE(open().report().is_out_for(kUser));
  EXPECT_FALSE(open().report().is_out_for(kOther));
  ASSERT_TRUE(open().give_back(kOther));
  EXPECT_TRUE(open().report().is_out_for(kUser));
  ASSERT_TRUE(open().give_back(kRoot));
  EXPECT_FALSE(open().report().is_out_for(kUser));
}

TEST_F(Pool, EveryReturnIsANewReport) {
  HostPool pool = open();
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pool.give_back(kRoot));
    EXPECT_GT(pool.report().changed_ns, last);
    last = pool.report().changed_ns;
  }
}

TEST_F(Pool, UnreadableRecordKeepsTheHostOut) {
  ASSERT_TRUE(open().take_out(kRoot));
  std::ofstream(directory + "/pool.json") << "{";
  EXPECT_TRUE(open().report().is_out_for(kUser));
}

TEST_F(Pool, UsersCannotFillTheRecord) {
  PoolReport full{.changed_ns = 1};
  for (uid_t uid = 1; uid <= 1024; ++uid) full.out.insert(uid);
  ASSERT_TRUE(RecordFiles::open(directory)->write("pool", to_json(full)));
  HostPool pool = open();
  ASSERT_TRUE(pool.take_out(kUser));  // is out already
  EXPECT_EQ(pool.take_out(5000).error().errno_value, EAGAIN);
  ASSERT_TRUE(pool.give_back(kRoot));
  EXPECT_TRUE(pool.take_out(5000));
}

}  // namespace
}  // namespace ppmr
