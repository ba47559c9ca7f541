// POSIX helpers of the programs: whole reads and writes, lines in a file, clocks, and exit with an
// error message.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace ppmr_programs {

[[noreturn]] inline void die(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  _exit(1);
}

inline int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

// CRIU restores a process into a time namespace in which this clock continues from the moment of
// the dump.
inline int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// Returns a time that is comparable across nodes, because time namespaces do not change
// this clock.
inline int64_t realtime_ns() { return clock_ns(CLOCK_REALTIME); }

inline void sleep_ns(int64_t ns) {
  timespec left{ns / 1'000'000'000, ns % 1'000'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Makes one step per `interval_ns`. After a pause (a move) it continues from the current time and
// does not make up for missed steps.
class Pace {
 public:
  explicit Pace(int64_t interval_ns) : interval_ns_(interval_ns), next_ns_(monotonic_ns()) {}
  void wait() {
    next_ns_ += interval_ns_;
    const int64_t now = monotonic_ns();
    if (next_ns_ < now) {
      next_ns_ = now;
      return;
    }
    sleep_ns(next_ns_ - now);
  }

 private:
  int64_t interval_ns_;
  int64_t next_ns_;
};

inline bool read_whole(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = read(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

inline bool write_whole(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// A file of lines. It does not use O_APPEND, so the next line goes to the descriptor's offset,
// which a move must keep.
class LineFile {
 public:
  explicit LineFile(const std::string& path)
      : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) die(path.c_str());
  }
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile() { close(fd_); }

  __attribute__((format(printf, 2, 3))) void line(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= static_cast<int>(sizeof text) - 1) {
      errno = EOVERFLOW;
      die("line");
    }
    text[length] = '\n';
    if (!write_whole(fd_, text, static_cast<size_t>(length) + 1)) die("write of a line");
  }

 private:
  int fd_;
};

// Returns the name of the node on which the process runs. Not cached, because a move changes it.
inline std::string node_name() {
  char name[65] = {};
  if (gethostname(name, sizeof name - 1) != 0) die("gethostname");
  return name;
}

}  // namespace ppmr_programs
