#include "jobs/agent/job_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace ppmr {
namespace {

TEST(JobWorkers, WorkForOneJobDoesNotDelayAnother) {
  std::latch first_may_end(1), second_is_done(1);
  JobWorkers workers;
  workers.begin("first", [&] { first_may_end.wait(); });
  workers.begin("second", [&] { second_is_done.count_down(); });
  second_is_done.wait();
  first_may_end.count_down();
}

TEST(JobWorkers, WorkForAJobDoesNotBeginWhileEarlierWorkIsUnderWay) {
  std::latch has_begun(1), may_end(1);
  std::atomic<int> runs = 0;
  JobWorkers workers;
  workers.begin("job", [&] {
    ++runs;
    has_begun.count_down();
    may_end.wait();
  });
  has_begun.wait();
  workers.begin("job", [&] { ++runs; });
  may_end.count_down();
  workers.await_all();
  EXPECT_EQ(runs, 1);
  workers.begin("job", [&] { ++runs; });
  workers.await_all();
  EXPECT_EQ(runs, 2);
}

TEST(JobWorkers, WorkForAJobCanBeginAgainAfterTheEarlierWork) {
  std::atomic<int> runs = 0;
  JobWorkers workers;
  for (int i = 0; i < 1'000; ++i) workers.begin(i % 2 == 0 ? "a" : "b", [&] { ++runs; });
  workers.await_all();
  EXPECT_GE(runs, 2);
}

}  // namespace
}  // namespace ppmr
