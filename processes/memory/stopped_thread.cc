#include "processes/memory/stopped_thread.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
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
    : thread_(std::exchange(other.thread_, 0)), signal_(other.signal_) {}

StoppedThread::~StoppedThread() {
  if (thread_ != 0) ptrace(PTRACE_DETACH, thread_, nullptr, signal_);
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

Status StoppedThread::run_to_call_stop() {
  for (int signals = 0; signals < kSignalsMax;) {
    if (Status done = trace(PTRACE_SYSCALL, "continue"); !done) return done;
    const auto status = await_stop(kAsLongAsItTakes);
    if (!status) return failure(status.error());
    if (is_call_stop(*status)) return {};
    if (is_event_stop(*status)) continue;
    if (was_call_dispatched(*status)) {
      return failure(EOPNOTSUPP, fmt::format("thread {} dispatches its own system calls", thread_));
    }
    signal_ = static_cast<unsigned long>(WSTOPSIG(*status));
    ++signals;
  }
  return failure(EIO, fmt::format("thread {} gets signal {} again and again", thread_, signal_));
}

Status StoppedThread::run_to_restart_stop() {
  if (Status done = trace(PTRACE_INTERRUPT, "stop"); !done) return done;
  if (Status done = trace(PTRACE_CONT, "continue"); !done) return done;
  return await_event_stop(kAsLongAsItTakes);
}

}  // namespace ppmr
