#include "processes/memory/slow_down.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "processes/memory/stopped_thread.h"
#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

const auto kNever = [] { return false; };

TEST(SlowDown, StandsStillForTheShare) {
  for (const uint64_t percent : {1, 30, 50, 95}) {
    const StopAndGo times = stop_and_go(percent);
    EXPECT_EQ(times.stands * 100, (times.stands + times.runs) * static_cast<int64_t>(percent));
  }
  EXPECT_GT(stop_and_go(100).runs, microseconds(0)) << "it always runs for a while";
}

// A tree of two processes that count for as long as they have a processor.
struct Counters {
  std::atomic<uint64_t> parent{0};
  std::atomic<uint64_t> child{0};
};

class SlowedTree : public testing::Test {
 protected:
  void SetUp() override {
    void* const mapped =
        mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    counters_ = new (mapped) Counters;
    parent_ = std::make_unique<TestProcess>([this] {
      static const TestProcess child([this] { count(counters_->child); });
      count(counters_->parent);
    });
  }
  void TearDown() override {
    parent_.reset();
    munmap(counters_, sizeof(Counters));
  }
  static void count(std::atomic<uint64_t>& counter) {
    std::thread([&counter] {
      for (;;) ++counter;
    }).detach();
  }
  // Waits until both processes have counted `more` times or more.
  void await_counts(uint64_t more) const {
    const uint64_t parent = counters_->parent + more;
    const uint64_t child = counters_->child + more;
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while ((counters_->parent < parent || counters_->child < child) && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_GE(counters_->parent, parent);
    ASSERT_GE(counters_->child, child);
  }
  static void await_stopped(pid_t pid, bool is_stopped) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    const auto is_done = [&] {
      const auto stat = read_process_stat(pid);
      return stat && (stat->state == 't') == is_stopped;
    };
    while (!is_done() && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(is_done());
  }
  // Returns the share of looks within `time` at which the parent was stopped.
  double share_stopped(milliseconds time) const {
    unsigned looks = 0;
    unsigned stopped = 0;
    for (const auto end = Clock::now() + time; Clock::now() < end; ++looks) {
      const auto stat = read_process_stat(parent_->pid());
      if (stat && stat->state == 't') ++stopped;
      std::this_thread::sleep_for(microseconds(700));
    }
    return static_cast<double>(stopped) / std::max(looks, 1U);
  }

  Counters* counters_ = nullptr;
  std::unique_ptr<TestProcess> parent_;
};

TEST_F(SlowedTree, IsSeenToStandStillAndRunsAgainAfterwards) {
  await_counts(1000);
  {
    const SlowDown slowed(parent_->pid(), 80, kNever);
    await_counts(1000);  // it still runs
    EXPECT_GT(share_stopped(milliseconds(1500)), 0.5);
  }
  EXPECT_EQ(share_stopped(milliseconds(200)), 0);
  await_counts(1000);
}

TEST_F(SlowedTree, IsLeftAloneWithoutAShare) {
  const SlowDown slowed(parent_->pid(), 0, kNever);
  EXPECT_EQ(share_stopped(milliseconds(200)), 0);
}

TEST_F(SlowedTree, IsLeftAloneDuringAPause) {
  await_counts(1000);
  std::atomic<bool> is_paused = true;
  const SlowDown slowed(parent_->pid(), 80, [&] { return is_paused.load(); });
  EXPECT_EQ(share_stopped(milliseconds(300)), 0);
  is_paused = false;
  await_stopped(parent_->pid(), true);
}

// A thread that waits for the child of its vfork(2) does not stop, and the child is stopped, too.
TEST_F(SlowedTree, IsNotStoppedForLongerByAThreadThatDoesNotStop) {
  const TestProcess process([] {
    std::thread([] {
      if (vfork() == 0) {
        for (;;) pause();
      }
    }).detach();
  });
  const auto has_child = [&] {
    const auto tree = read_tree(process.pid());
    return tree && tree->size() == 2;
  };
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (!has_child() && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(has_child());
  const SlowDown slowed(process.pid(), 80, kNever);
  auto shortest = Clock::duration::max();
  for (int stop = 0; stop < 5; ++stop) {
    await_stopped(process.pid(), true);
    const auto began = Clock::now();
    await_stopped(process.pid(), false);
    shortest = std::min(shortest, Clock::now() - began);
  }
  EXPECT_LT(shortest, StoppedThread::kPatience / 2);
}

TEST_F(SlowedTree, MayEndMeanwhile) {
  const SlowDown slowed(parent_->pid(), 50, kNever);
  await_counts(1000);
  parent_->end();
}

}  // namespace
}  // namespace ppmr
