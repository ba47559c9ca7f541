#include "base/line_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>

namespace ppmr {

namespace {

constexpr std::string_view kPeer = "a control socket";

}  // namespace

Status wait_for(int socket, short poll_events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return failure(ETIMEDOUT, "no answer in time");
    pollfd fd{socket, poll_events, 0};
    const int ready = poll(&fd, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_failure("wait for", kPeer);
  }
}

Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline, std::vector<UniqueFd>* descriptors) {
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
    std::vector<UniqueFd> none;
    const auto n = receive_bytes(socket, std::as_writable_bytes(std::span(buffer)),
                                 descriptors != nullptr ? kDescriptorsMax : 0,
                                 descriptors != nullptr ? *descriptors : none, kPeer, MSG_DONTWAIT);
    if (!n && n.error().errno_value == EAGAIN) continue;
    if (!n) return failure(n.error());
    if (*n == 0) return failure(ENODATA, "the connection was closed");
    pending.append(buffer, *n);
  }
}

Status write_line(int socket, std::string_view line, Deadline deadline,
                  std::span<const UniqueFd> descriptors) {
  assert(descriptors.size() <= kDescriptorsMax);
  std::string bytes(line);
  bytes += '\n';
  for (size_t sent = 0; sent < bytes.size();) {
    const auto n = send_bytes(socket, std::as_bytes(std::span(bytes).subspan(sent)), descriptors,
                              kPeer, MSG_DONTWAIT);
    if (n) {
      descriptors = {};
      sent += *n;
    } else if (n.error().errno_value == EAGAIN) {
      if (Status ready = wait_for(socket, POLLOUT, deadline); !ready) return ready;
    } else {
      return failure(n.error());
    }
  }
  return {};
}

}  // namespace ppmr
