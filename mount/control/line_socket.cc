#include "mount/control/line_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

namespace ppmr {

Status wait_for(int socket, short poll_events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return failure(ETIMEDOUT, "no answer in time");
    pollfd fd{socket, poll_events, 0};
    const int ready = poll(&fd, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_failure("poll", "a control socket");
  }
}

Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline) {
  size_t searched = 0;
  for (;;) {
    const size_t newline = pending.find('\n', searched);
    if (newline != std::string::npos && newline <= line_max_bytes) {
      line.assign(pending, 0, newline);
      pending.erase(0, newline + 1);
      return {};
    }
    searched = pending.size();
    if (searched > line_max_bytes) {
      return failure(EMSGSIZE,
                     "line too long: the maximum is " + std::to_string(line_max_bytes) + " bytes");
    }
    if (Status ready = wait_for(socket, POLLIN, deadline); !ready) return ready;
    char buffer[16 << 10];
    const ssize_t n = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n == 0) return failure(ENODATA, "the connection was closed");
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      return system_failure("receive from", "a control socket");
    if (n > 0) pending.append(buffer, static_cast<size_t>(n));
  }
}

Status write_line(int socket, std::string_view line, Deadline deadline) {
  std::string bytes(line);
  bytes += '\n';
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n =
        send(socket, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      if (Status ready = wait_for(socket, POLLOUT, deadline); !ready) return ready;
    } else if (errno != EINTR) {
      return system_failure("send to", "a control socket");
    }
  }
  return {};
}

}  // namespace ppmr
