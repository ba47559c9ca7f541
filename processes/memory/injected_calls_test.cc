#include "processes/memory/injected_calls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

constexpr int kPatienceMs = 20'000;

struct Pipe {
  UniqueFd out;
  UniqueFd in;
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    out = UniqueFd(ends[0]), in = UniqueFd(ends[1]);
  }
  bool gets_byte() const {
    pollfd wanted{out.get(), POLLIN, 0};
    return poll(&wanted, 1, kPatienceMs) == 1 && (wanted.revents & POLLIN) != 0;
  }
};

TEST(InjectedCalls, ACallHasTheResultThatTheProcessWouldGet) {
  const TestProcess process;
  long pid = 0;
  const Status called = with_injected_calls(process.pid(), [&](InjectedCalls& calls) -> Status {
    const auto said = calls.call(SYS_getpid, {});
    pid = said.value_or(0);
    return said ? Status{} : failure(said.error());
  });
  if (!called && called.error().errno_value == EOPNOTSUPP) {
    GTEST_SKIP() << "NOT TESTED: injected calls: " << called.error().message;
  }
  ASSERT_TRUE(called) << called.error().message;
  EXPECT_EQ(pid, process.pid());
}

// On a busy machine any call may take that long.
TEST(InjectedCalls, ACallThatTakesLongerThanAStopLeavesTheProcessAsItWas) {
  const TestProcess process([] { signal(SIGUSR1, [](int) { _exit(7); }); });
  const auto longer = StoppedThread::kPatience + std::chrono::milliseconds(200);
  long answer = -1;
  const Status called = with_injected_calls(process.pid(), [&](InjectedCalls& calls) -> Status {
    const auto said = calls.call(SYS_poll, {0, 0, static_cast<uint64_t>(longer.count())});
    answer = said.value_or(-1);
    return said ? Status{} : failure(said.error());
  });
  if (!called && called.error().errno_value == EOPNOTSUPP) {
    GTEST_SKIP() << "NOT TESTED: injected calls: " << called.error().message;
  }
  ASSERT_TRUE(called) << called.error().message;
  EXPECT_EQ(answer, 0);
  kill(process.pid(), SIGUSR1);
  siginfo_t end{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process.pid()), &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_code, CLD_EXITED) << "it has ended by a signal";
}

TEST(InjectedCalls, ANumberThatACallWritesIsRead) {
  const TestProcess process;  // it gets SIGKILL when its parent ends
  std::optional<uint32_t> signal;
  for (int again = 0; again < 2; ++again) {
    const Status called = with_injected_calls(process.pid(), [&](InjectedCalls& calls) -> Status {
      const auto said = calls.call_for_number(SYS_prctl, {PR_GET_PDEATHSIG, 0, 0}, 1);
      if (said) signal = *said;
      return said ? Status{} : failure(said.error());
    });
    if (!called && called.error().errno_value == EOPNOTSUPP) {
      GTEST_SKIP() << "NOT TESTED: injected calls: " << called.error().message;
    }
    ASSERT_TRUE(called) << called.error().message;
    EXPECT_EQ(signal, uint32_t{SIGKILL});
  }
}

// Between vfork(2) and the end of its child, a thread cannot be interrupted.
TEST(InjectedCalls, AThreadThatDidNotStopInTimeGoesOnLater) {
  const Pipe begins, ends, goes_on;
  const pid_t pid = fork();
  if (pid == 0) {
    const int begun = begins.in.get(), ended = ends.out.get();
    if (vfork() == 0) {
      char byte = 0;
      (void)!write(begun, "", 1);
      (void)!read(ended, &byte, 1);
      _exit(0);
    }
    (void)!write(goes_on.in.get(), "", 1);
    _exit(0);
  }
  ASSERT_TRUE(begins.gets_byte());
  const Status called = with_injected_calls(pid, [](InjectedCalls&) { return Status{}; });
  EXPECT_FALSE(called);
  if (!called && called.error().errno_value != EOPNOTSUPP) {
    EXPECT_EQ(called.error().errno_value, ETIMEDOUT) << called.error().message;
  }
  ASSERT_EQ(write(ends.in.get(), "", 1), 1);
  EXPECT_TRUE(goes_on.gets_byte()) << "it is stopped";
  kill(pid, SIGKILL);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace ppmr
