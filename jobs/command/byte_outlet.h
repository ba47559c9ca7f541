// Bytes on their way to a pipe, a terminal or a file whose reader may be slow.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>
#include <vector>

namespace ppmr {

// Writes only when poll(2) reports that the descriptor is writable, and at most PIPE_BUF bytes at a
// time. A pipe then accepts the bytes without blocking. So the descriptor need not be non-blocking,
// which would also affect other processes that share it. Threads: one.
struct ByteOutlet {
  int fd = -1;  // not owned; -1: discards the bytes
  std::string unsent{};

  bool is_empty() const { return unsent.empty(); }
  void add_to(std::vector<pollfd>& fds) const {
    if (!is_empty()) fds.push_back({fd, POLLOUT, 0});
  }
  void put(const std::string& bytes) {
    if (fd >= 0) unsent += bytes;
  }
  // Writes bytes. If the reader has closed its end, drops these bytes and all later ones.
  void flush() {
    while (!is_empty()) {
      pollfd writable{fd, POLLOUT, 0};
      if (poll(&writable, 1, 0) <= 0) return;
      const ssize_t count = write(fd, unsent.data(), std::min<size_t>(unsent.size(), PIPE_BUF));
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count < 0) {
        fd = -1;
        unsent.clear();
        return;
      }
      unsent.erase(0, static_cast<size_t>(count));
    }
  }
};

}  // namespace ppmr
