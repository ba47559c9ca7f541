#include "processes/memory/stopped_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace ppmr {
namespace {

constexpr size_t kThreads = 8;
constexpr auto kPatience = std::chrono::seconds(20);

// Counters that a process shares with the test.
struct Shared {
  std::array<std::atomic<uint64_t>, kThreads> turns{};
  std::atomic<uint64_t> threads_made{0};
  std::atomic<uint64_t> signals{0};
};

Shared* shared = nullptr;

class StoppedProcess : public testing::Test {
 protected:
  void SetUp() override {
    void* const mapped =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    shared = new (mapped) Shared;
  }
  void TearDown() override {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    munmap(shared, sizeof(Shared));
  }
  void start(const std::function<void()>& work) {
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    work();
    _exit(0);
  }
  static void await(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(done());
  }

  pid_t pid_ = 0;
};

[[noreturn]] void count(size_t number) {
  for (;;) ++shared->turns[number];
}

TEST_F(StoppedProcess, NoThreadRunsDuringTheWork) {
  start([] {
    for (size_t number = 1; number < kThreads; ++number) std::thread(count, number).detach();
    count(0);
  });
  for (size_t number = 0; number < kThreads; ++number) {
    await([&] { return shared->turns[number] > 0; });
  }
  const Status done = with_stopped_process(pid_, []() -> Status {
    std::array<uint64_t, kThreads> before{};
    for (size_t number = 0; number < kThreads; ++number) before[number] = shared->turns[number];
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (size_t number = 0; number < kThreads; ++number) {
      EXPECT_EQ(shared->turns[number], before[number]) << "thread " << number;
    }
    return {};
  });
  ASSERT_TRUE(done) << done.error().message;
  const uint64_t now = shared->turns[0];
  await([&] { return shared->turns[0] > now; });
}

// The process makes threads all the time, and its first thread has ended.
TEST_F(StoppedProcess, ThreadsThatComeAndGoAreStoppedAsWell) {
  start([] {
    std::thread([] {
      for (;;) std::thread([] { ++shared->threads_made; }).join();
    }).detach();
    syscall(SYS_exit, 0);  // ends this thread only
  });
  await([] { return shared->threads_made > 10; });
  for (int i = 0; i < 50; ++i) {
    const Status done = with_stopped_process(pid_, []() -> Status {
      const uint64_t before = shared->threads_made;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_EQ(shared->threads_made, before);
      return {};
    });
    ASSERT_TRUE(done) << done.error().message;
  }
}

TEST_F(StoppedProcess, NoSignalIsLost) {
  constexpr uint64_t kSignals = 500;
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &one, &before);
  start([&] {
    signal(SIGRTMIN, [](int) { ++shared->signals; });
    for (;;) sigsuspend(&before);
  });
  sigprocmask(SIG_SETMASK, &before, nullptr);
  std::thread sender([this] {
    for (uint64_t sent = 0; sent < kSignals; ++sent) sigqueue(pid_, SIGRTMIN, {});
  });
  for (int i = 0; i < 20; ++i) {
    const Status done = with_stopped_process(pid_, [] { return Status{}; });
    EXPECT_TRUE(done) << done.error().message;
  }
  sender.join();
  await([] { return shared->signals == kSignals; });
}

TEST_F(StoppedProcess, AProcessThatHasEndedIsNamed) {
  start([] {});
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT), 0);
  kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  const Status done = with_stopped_process(std::exchange(pid_, 0), [] { return Status{}; });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().errno_value, ESRCH);
}

// The user has stopped the process, so it must not continue after the work.
TEST_F(StoppedProcess, AStoppedProcessStaysStopped) {
  start([] { count(0); });
  await([] { return shared->turns[0] > 0; });
  int status = 0;
  kill(pid_, SIGSTOP);
  ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  const uint64_t before = shared->turns[0];
  const Status done = with_stopped_process(pid_, [] { return Status{}; });
  ASSERT_TRUE(done) << done.error().message;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(shared->turns[0], before);
  kill(pid_, SIGCONT);
  await([&] { return shared->turns[0] > before; });
}

}  // namespace
}  // namespace ppmr
