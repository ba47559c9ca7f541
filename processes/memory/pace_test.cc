#include "processes/memory/pace.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/number_file.h"

namespace ppmr {
namespace {

using std::chrono::seconds;

TEST(Pace, SpreadsReadsOverTime) {
  Pace pace;
  const Pace::Time begin{seconds(1000)};
  EXPECT_EQ(pace.wait_until(100, 50, begin), begin + seconds(2));
  // The next read begins late: it gets no credit for that.
  EXPECT_EQ(pace.wait_until(100, 50, begin + seconds(10)), begin + seconds(12));
  // Two reads of one moment follow each other.
  EXPECT_EQ(pace.wait_until(50, 50, begin + seconds(12)), begin + seconds(13));
  EXPECT_EQ(pace.wait_until(50, 50, begin + seconds(12)), begin + seconds(14));
}

TEST(Pace, FollowsAChangedRateAndItsEnd) {
  Pace pace;
  const Pace::Time begin{seconds(1000)};
  EXPECT_EQ(pace.wait_until(100, 100, begin), begin + seconds(1));
  EXPECT_EQ(pace.wait_until(100, 20, begin + seconds(1)), begin + seconds(6));
  EXPECT_EQ(pace.wait_until(1 << 30, 0, begin + seconds(6)), begin + seconds(6));
}

TEST(Pace, RestsAsLongAsItsShareRequires) {
  EXPECT_EQ(rest_after(seconds(1), seconds(1), 25), seconds(3));
  EXPECT_EQ(rest_after(seconds(1), seconds(3), 25), seconds(1)) << "it has waited for a slot";
  EXPECT_EQ(rest_after(seconds(1), seconds(9), 25), seconds(0));
  EXPECT_EQ(rest_after(seconds(2), seconds(1), 100), seconds(0)) << "no limit";
  EXPECT_EQ(rest_after(seconds(2), seconds(1), 50), seconds(3)) << "two threads at once";
  EXPECT_EQ(rest_after(seconds(2), seconds(1), 0), seconds(0)) << "no limit";
}

// The page reader's parent needs the time of the rests to compute the rate of a reading.
TEST(Pace, WritesHowLongItHasRested) {
  const std::string path = testing::TempDir() + "/told";
  ASSERT_TRUE(write_number(path, 50));
  PacedReading pace({.cpu_share = path});
  EXPECT_TRUE(pace.wait_after(1, std::chrono::milliseconds(40)));
  const uint64_t once_ns = read_number(path + kRestedSuffix);
  EXPECT_GT(once_ns, 0u);
  EXPECT_LE(once_ns, 200'000'000u);
  EXPECT_TRUE(pace.wait_after(1, std::chrono::milliseconds(40)));
  EXPECT_GT(read_number(path + kRestedSuffix), once_ns) << "the sum";
  std::filesystem::remove(path);
  std::filesystem::remove(path + kRestedSuffix);
}

// A program that sends epochs for days has used hours of processor time before it copies the next
// epoch.
TEST(Pace, ProcessorTimeBeforeTheReadingDoesNotCount) {
  const std::string path = testing::TempDir() + "/share";
  ASSERT_TRUE(write_number(path, 1));
  const auto used = processor_time() + std::chrono::milliseconds(50);
  while (processor_time() < used) {
  }
  PacedReading reading({.cpu_share = path});
  EXPECT_TRUE(reading.wait_after(1));
  EXPECT_LT(read_number(path + kRestedSuffix), 4'000'000'000u) << "nanoseconds; 5 s for the 50 ms";
  std::filesystem::remove(path);
  std::filesystem::remove(path + kRestedSuffix);
}

// The processor time of others counts as well. Without it the wait would end at once.
TEST(Pace, WaitForTheShareEndsWhenItIsRaised) {
  const std::string path = testing::TempDir() + "/share";
  ASSERT_TRUE(write_number(path, 1));
  std::atomic<bool> is_raised = false;
  std::thread raise([&] {
    is_raised = true;
    EXPECT_TRUE(write_number(path, 100));
  });
  EXPECT_TRUE(PacedReading({.cpu_share = path}).wait_after(1, std::chrono::minutes(1)));
  EXPECT_TRUE(is_raised);
  raise.join();
  std::filesystem::remove(path);
}

TEST(Pace, RateInAFileIsReplaced) {
  const std::string path = testing::TempDir() + "/rate";
  std::filesystem::remove(path);
  EXPECT_EQ(read_number(path), 0u) << "no limit";
  ASSERT_TRUE(write_number(path, 1 << 20));
  EXPECT_EQ(read_number(path), 1u << 20);
  ASSERT_TRUE(write_number(path, 5));
  EXPECT_EQ(read_number(path), 5u);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  std::filesystem::remove(path);
}

// At the old rate the wait would take an hour.
TEST(Pace, WaitEndsWhenTheRateIsRaised) {
  const std::string path = testing::TempDir() + "/raised";
  ASSERT_TRUE(write_number(path, 1));
  std::thread raise([&] { EXPECT_TRUE(write_number(path, 0)); });
  EXPECT_TRUE(PacedReading({.rate = path}).wait_after(3600));
  raise.join();
  std::filesystem::remove(path);
}

TEST(Pace, PauseLastsUntilItsFileHasZero) {
  const std::string path = testing::TempDir() + "/pause";
  ASSERT_TRUE(write_number(path, 2));
  std::atomic<bool> has_resumed = false;
  std::thread resume([&] {
    has_resumed = true;
    EXPECT_TRUE(write_number(path, 0));
  });
  EXPECT_TRUE(PacedReading({.pause = path}).wait_after(1));
  EXPECT_TRUE(has_resumed);
  resume.join();
  std::filesystem::remove(path);
}

// Without this, a page reader would outlive a migration that was cancelled during its pause.
TEST(Pace, PauseEndsWhenTheOtherEndIsClosed) {
  const std::string path = testing::TempDir() + "/pause";
  ASSERT_TRUE(write_number(path, 2));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  std::thread close_it([&] { close(ends[1]); });
  EXPECT_FALSE(PacedReading({.pause = path}).wait_after(1, {}, ends[0]));
  close_it.join();
  close(ends[0]);
  std::filesystem::remove(path);
}

// Without this, a move that is cancelled during a pause, or at a low rate, would wait for its
// round.
TEST(Pace, ReadingEndsWhenNoMoreIsWanted) {
  const std::string path = testing::TempDir() + "/pause";
  ASSERT_TRUE(write_number(path, 2));
  std::thread cancel([&] { EXPECT_TRUE(write_number(path, kReadNoMore)); });
  EXPECT_FALSE(PacedReading({.pause = path}).wait_after(1));
  cancel.join();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ppmr
