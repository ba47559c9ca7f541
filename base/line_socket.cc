#include "base/line_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cstring>

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

namespace {

constexpr size_t kFdBytesMax = kDescriptorsMax * sizeof(int);

union ControlBuffer {
  char bytes[CMSG_SPACE(kFdBytesMax)];
  cmsghdr align;
};

// Returns -1 and EMFILE when the kernel could not deliver all descriptors.
ssize_t receive(int socket, std::span<char> bytes, std::vector<UniqueFd>* descriptors) {
  iovec buffer{bytes.data(), bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  // If the caller wants no descriptors, there is no buffer for them, and the kernel closes them.
  if (descriptors != nullptr) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
  }
  const ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 || descriptors == nullptr) return count;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    const size_t passed = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < passed; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
      descriptors->emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) == 0) return count;
  errno = EMFILE;
  return -1;
}

ssize_t transmit(int socket, std::string_view bytes, std::span<const UniqueFd> descriptors) {
  iovec buffer{const_cast<char*>(bytes.data()), bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t fd_bytes = descriptors.size() * sizeof(int);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fd_bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_bytes);
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(fd), &fd, sizeof(fd));
    }
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

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
    const ssize_t n = receive(socket, buffer, descriptors);
    if (n == 0) return failure(ENODATA, "the connection was closed");
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      return system_failure("receive from", "a control socket");
    if (n > 0) pending.append(buffer, static_cast<size_t>(n));
  }
}

Status write_line(int socket, std::string_view line, Deadline deadline,
                  std::span<const UniqueFd> descriptors) {
  assert(descriptors.size() <= kDescriptorsMax);
  std::string bytes(line);
  bytes += '\n';
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = transmit(socket, std::string_view(bytes).substr(sent), descriptors);
    if (n > 0) {
      descriptors = {};
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
