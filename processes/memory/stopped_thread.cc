#include "processes/memory/stopped_thread.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// Only the tracing thread may call waitpid(2), which has no time limit. So it looks now and then.
constexpr std::chrono::microseconds kLookInterval{100};
constexpr int kSignalsMax = 1000;          // the limit during one system call
constexpr int kCallStop = SIGTRAP | 0x80;  // PTRACE_O_TRACESYSGOOD

bool is_event_stop(int status) { return status >> 16 == PTRACE_EVENT_STOP; }
bool is_call_stop(int status) { return status >> 16 == 0 && WSTOPSIG(status) == kCallStop; }

}  // namespace

StoppedThread::StoppedThread(StoppedThread&& other) noexcept
    : thread_(std::exchange(other.thread_, 0)) {}

StoppedThread::~StoppedThread() {
  if (thread_ != 0) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
}

Status StoppedThread::trace(int request, const char* what, void* data) const {
  if (ptrace(static_cast<__ptrace_request>(request), thread_, nullptr, data) == 0) return {};
  return system_failure(what, fmt::format("thread {}", thread_));
}

Result<StoppedThread> StoppedThread::ask_to_stop(pid_t thread) {
  if (ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACESYSGOOD) != 0) {
    return system_failure("trace", fmt::format("thread {}", thread));
  }
  StoppedThread stopped(thread);
  if (Status done = stopped.trace(PTRACE_INTERRUPT, "stop"); !done) return failure(done.error());
  return stopped;
}

Result<StoppedThread> StoppedThread::stop(pid_t thread) {
  auto stopped = ask_to_stop(thread);
  if (!stopped) return stopped;
  if (Status done = stopped->await_stopped(); !done) return failure(done.error());
  return stopped;
}

Status StoppedThread::await_stopped(std::chrono::milliseconds patience) const {
  return await_event_stop(patience);
}

// The requested stop comes after the stops for signals that arrive.
Status StoppedThread::await_event_stop(std::chrono::milliseconds patience) const {
  for (;;) {
    const auto status = await_stop(patience);
    if (!status) return failure(status.error());
    if (is_event_stop(*status)) return {};
    const auto signal = static_cast<unsigned long>(WSTOPSIG(*status));
    Status done = trace(PTRACE_CONT, "continue", reinterpret_cast<void*>(signal));
    if (!done) return done;
  }
}

Result<int> StoppedThread::await_stop(std::chrono::milliseconds patience) const {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    int status = 0;
    const pid_t found = waitpid(thread_, &status, __WALL | WNOHANG);
    if (found < 0 && errno != EINTR) {
      return system_failure("wait for", fmt::format("thread {}", thread_));
    }
    if (found == thread_ && WIFSTOPPED(status)) return status;
    if (found == thread_) return failure(ESRCH, fmt::format("thread {} has ended", thread_));
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, fmt::format("thread {} does not stop: it is in a system call that "
                                            "cannot be interrupted",
                                            thread_));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
}

bool StoppedThread::was_call_dispatched(int status) const {
  constexpr int kUserDispatch = 2;  // SYS_USER_DISPATCH of siginfo.h
  siginfo_t signal{};
  return WSTOPSIG(status) == SIGSYS && ptrace(PTRACE_GETSIGINFO, thread_, nullptr, &signal) == 0 &&
         signal.si_code == kUserDispatch;
}

// Blocks all signals when one arrives, and then passes this signal on to the thread. So the kernel
// keeps the signal pending, as it was sent. SIGSTOP cannot be blocked: it stops the process, but
// the traced thread continues until the trace ends. SIGSYS stays unblocked until a signal arrives:
// if the kernel forces a blocked SIGSYS on a thread, it resets the handler of the process.
//
// Rejected: to send the signals again later. A SIGSTOP would come after the SIGCONT that has ended
// it, and a process cannot send a signal as the kernel does.
Status StoppedThread::run_to_call_stop() {
  unsigned long signal = 0;
  for (int signals = 0; signals < kSignalsMax;) {
    Status done = trace(PTRACE_SYSCALL, "continue", reinterpret_cast<void*>(signal));
    if (!done) return done;
    signal = 0;
    const auto status = await_stop(kAsLongAsItTakes);
    if (!status) return failure(status.error());
    if (is_call_stop(*status)) return {};
    if (is_event_stop(*status)) continue;
    if (was_call_dispatched(*status)) {
      return failure(EOPNOTSUPP, fmt::format("thread {} dispatches its own system calls", thread_));
    }
    uint64_t all = ~uint64_t{0};
    const bool can_be_blocked = WSTOPSIG(*status) != SIGSTOP;
    if (can_be_blocked && ptrace(PTRACE_SETSIGMASK, thread_, sizeof(all), &all) != 0) {
      return system_failure("block the signals of", fmt::format("thread {}", thread_));
    }
    signal = static_cast<unsigned long>(WSTOPSIG(*status));
    ++signals;
  }
  return failure(EIO, fmt::format("run thread {} to a system call: the thread gets signal {} again "
                                  "and again",
                                  thread_, signal));
}

Status StoppedThread::run_to_restart_stop() {
  if (Status done = trace(PTRACE_INTERRUPT, "stop"); !done) return done;
  if (Status done = trace(PTRACE_CONT, "continue"); !done) return done;
  return await_event_stop(kAsLongAsItTakes);
}

}  // namespace ppmr
