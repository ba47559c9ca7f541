#include "processes/processor_times.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "processes/test_process.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(ProcessorTimes, ReadsTheFileOfTheKernel) {
  const auto times = parse_schedstat("451012 55642 1\n");
  ASSERT_TRUE(times);
  EXPECT_EQ(times->ran, nanoseconds(451012));
  EXPECT_EQ(times->waited, nanoseconds(55642));
  for (const char* text : {"", "\n", "1", "1 ", "x 2 3", "1 x 3", "-1 2 3", "1\t2 3"}) {
    EXPECT_FALSE(parse_schedstat(text)) << text;
  }
}

TEST(ProcessorTimes, WaitingShareCountsOnlyReadyThreads) {
  EXPECT_EQ(waiting_share({}), 0) << "nothing was ready";
  EXPECT_EQ(waiting_share({milliseconds(3), milliseconds(1)}), 0.25);
  EXPECT_EQ(waiting_share({milliseconds(0), milliseconds(5)}), 1);
}

// Two processes on one processor: each waits about half of the time.
TEST(ProcessorMeter, SeesProcessesThatWaitForEachOther) {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int number = 0;
  while (!CPU_ISSET(number, &allowed)) ++number;
  CPU_ZERO(&one);
  CPU_SET(number, &one);
  const TestProcess root([&] {
    sched_setaffinity(0, sizeof(one), &one);
    for (int i = 0; i < 2; ++i) {
      if (fork() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) continue;
    }
  });
  ProcessorMeter meter(root.pid());
  ProcessorTimes sum;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (sum.waited < milliseconds(50) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
    const ProcessorTimes more = meter.since_last();
    sum.ran += more.ran, sum.waited += more.waited;
  }
  if (sum.ran.count() == 0 && sum.waited.count() == 0) {
    GTEST_SKIP() << "NOT TESTED: the kernel does not count (CONFIG_SCHED_INFO)";
  }
  EXPECT_GE(sum.waited, milliseconds(50));
  EXPECT_GT(waiting_share(sum), 0.2);
}

TEST(ProcessorMeter, TreeThatHasEndedCountsNothing) {
  TestProcess process;
  ProcessorMeter meter(process.pid());
  process.end();
  EXPECT_EQ(meter.since_last().ran.count(), 0);
}

}  // namespace
}  // namespace ppmr
