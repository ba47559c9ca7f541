#include "base/message_socket.h"

#include <sys/socket.h>

#include <array>
#include <cassert>
#include <cstring>

namespace ppmr {
namespace {

struct alignas(cmsghdr) ControlBuffer {
  std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> bytes{};
};

void take_descriptors(msghdr& message, std::vector<UniqueFd>& descriptors) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Result<size_t> receive_bytes(int socket, std::span<std::byte> bytes, size_t descriptors_max,
                             std::vector<UniqueFd>& descriptors, std::string_view peer, int flags) {
  assert(descriptors_max <= kDescriptorsMax);
  const size_t before = descriptors.size();
  iovec buffer{bytes.data(), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  ssize_t count = 0;
  do {
    if (descriptors_max > 0) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = CMSG_SPACE(descriptors_max * sizeof(int));
    }
    count = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return system_failure("receive from", peer);
  if (descriptors_max > 0) {
    take_descriptors(message, descriptors);
    // The kernel aligns the space for descriptors: one more than `descriptors_max` may have come.
    if ((message.msg_flags & MSG_CTRUNC) != 0 || descriptors.size() - before > descriptors_max) {
      descriptors.resize(before);
      return system_failure("receive descriptors from", peer, EMFILE);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    descriptors.resize(before);
    return system_failure("receive from", peer, EMSGSIZE);
  }
  return static_cast<size_t>(count);
}

Result<size_t> send_bytes(int socket, std::span<const std::byte> bytes,
                          std::span<const UniqueFd> descriptors, std::string_view peer, int flags) {
  assert(descriptors.size() <= kDescriptorsMax);
  iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t fd_bytes = descriptors.size() * sizeof(int);
    message.msg_control = control.bytes.data();
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
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return system_failure("send to", peer);
  return static_cast<size_t>(count);
}

}  // namespace ppmr
