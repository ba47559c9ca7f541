// Makes the creation of threads fail, as under a limit on processes (pids.max).
#pragma once

namespace ppmr {

// While this object exists, this process can create `threads_left` more threads. After that
// pthread_create() fails with EAGAIN. Link the test statically: otherwise a sanitizer's
// pthread_create() takes precedence.
//
// A process may have one such object at a time.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads_left);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  bool reached() const;
};

}  // namespace ppmr
