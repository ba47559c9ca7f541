#include "processes/memory/injected_calls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "processes/proc_files.h"
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

// Waits until a child of this process stops or ends. Returns the signal that stopped it; 0: it has
// ended.
int signal_of_stop(pid_t pid) {
  int status = 0;
  const pid_t found = waitpid(pid, &status, WUNTRACED);
  return found == pid && WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
}

class SignalsDuringCalls : public testing::Test {
 protected:
  // Injects one call for each of `signals`, which sends signals to the process before the call.
  static void inject(pid_t process, const std::vector<std::function<void()>>& signals) {
    const Status called = with_injected_calls(process, [&](InjectedCalls& calls) -> Status {
      for (const auto& send : signals) {
        send();
        const auto said = calls.call(SYS_getpid, {});
        if (!said) return failure(said.error());
        EXPECT_EQ(*said, process);
      }
      return {};
    });
    if (!called && called.error().errno_value == EOPNOTSUPP) {
      GTEST_SKIP() << "NOT TESTED: injected calls: " << called.error().message;
    }
    ASSERT_TRUE(called) << called.error().message;
  }
};

TEST_F(SignalsDuringCalls, SigstopStopsTheProcess) {
  const TestProcess process;
  inject(process.pid(), {[&] { kill(process.pid(), SIGSTOP); }, [] {}});
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(signal_of_stop(process.pid()), SIGSTOP);
}

TEST_F(SignalsDuringCalls, AProcessRunsAfterSigstopAndSigcont) {
  const Pipe runs;
  const int in = runs.in.get();
  const TestProcess process([=] {
    static int into;
    into = in;
    signal(SIGUSR1, [](int) { (void)!write(into, "", 1); });
  });
  inject(process.pid(),
         {[&] { kill(process.pid(), SIGSTOP); }, [&] { kill(process.pid(), SIGCONT); }, [] {}});
  if (IsSkipped() || HasFatalFailure()) return;
  kill(process.pid(), SIGUSR1);
  EXPECT_TRUE(runs.gets_byte()) << "it is stopped";
}

// SIGSYS is the signal that an injected call does not block.
TEST_F(SignalsDuringCalls, EachSignalArrivesAsItWasSent) {
  const Pipe arrives;
  const int in = arrives.in.get();
  const TestProcess process([=] {
    static int into;
    into = in;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* got, void*) { (void)!write(into, got, sizeof(*got)); };
    sigaction(SIGSYS, &action, nullptr);
    sigaction(SIGUSR1, &action, nullptr);
  });
  constexpr int kValue = 42;
  sigval value{};
  value.sival_int = kValue;
  inject(process.pid(),
         {[&] { sigqueue(process.pid(), SIGSYS, value); }, [&] { kill(process.pid(), SIGUSR1); },
          [&] { kill(process.pid(), SIGSTOP); }, [] {}});
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(signal_of_stop(process.pid()), SIGSTOP);
  kill(process.pid(), SIGCONT);
  std::set<int> signals;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(arrives.gets_byte()) << "a signal is lost";
    siginfo_t got{};
    ASSERT_EQ(read(arrives.out.get(), &got, sizeof(got)), static_cast<ssize_t>(sizeof(got)));
    signals.insert(got.si_signo);
    EXPECT_EQ(got.si_pid, getpid());
    EXPECT_EQ(got.si_code, got.si_signo == SIGSYS ? SI_QUEUE : SI_USER);
    EXPECT_EQ(got.si_value.sival_int, got.si_signo == SIGSYS ? kValue : 0);
  }
  EXPECT_EQ(signals, (std::set<int>{SIGSYS, SIGUSR1}));
}

// The program blocks the signal itself: it stays pending until the program unblocks it.
TEST_F(SignalsDuringCalls, ASignalThatTheProcessBlocksStaysPending) {
  const TestProcess process([] {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    sigprocmask(SIG_BLOCK, &one, nullptr);
  });
  inject(process.pid(), {[&] { kill(process.pid(), SIGSYS); }, [] {}});
  if (IsSkipped() || HasFatalFailure()) return;
  const auto status = read_process_file(process.pid(), "status");
  ASSERT_TRUE(status);
  const auto has_sigsys = [&](const std::string& field) {
    const size_t at = status->find(field);
    return at != std::string::npos &&
           (std::stoull(status->substr(at + field.size()), nullptr, 16) >> (SIGSYS - 1) & 1) != 0;
  };
  EXPECT_TRUE(has_sigsys("SigPnd:") || has_sigsys("ShdPnd:")) << *status;
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
