// A child process for tests: runs a function, then sleeps until it is killed.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace ppmr {

// Threads: one.
class TestProcess {
 public:
  // Returns when `prepare` has returned in the child. `prepare` may create more test processes, but
  // must not destroy them: they end with the child.
  explicit TestProcess(const std::function<void()>& prepare = [] {}) {
    pid_ = fork();
    if (pid_ < 0) abort();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prepare();
      raise(SIGSTOP);  // signals that the child is ready; a pipe would be a shared object
      for (;;) pause();
    }
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) abort();  // prepare() ended the child
    kill(pid_, SIGCONT);
  }
  TestProcess(const TestProcess&) = delete;
  ~TestProcess() { end(); }

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace ppmr
