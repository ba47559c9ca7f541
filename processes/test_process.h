// For tests: a child process that runs a function, then sleeps until it is killed; a shortage of
// descriptors in this process.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

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

// While this object exists, this process can open only `count` more files.
//
// Threads: one.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t count) {
    constexpr rlim_t kLimit = 256;
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) abort();
    const rlimit few{kLimit, before_.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) abort();
    for (int fd = dup(STDERR_FILENO); fd >= 0; fd = dup(STDERR_FILENO)) taken_.push_back(fd);
    for (; count > 0 && !taken_.empty(); --count) release_one();
  }
  FewDescriptors(const FewDescriptors&) = delete;
  ~FewDescriptors() {
    while (!taken_.empty()) release_one();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  void release_one() {
    close(taken_.back());
    taken_.pop_back();
  }

  std::vector<int> taken_;
  rlimit before_{};
};

}  // namespace ppmr
