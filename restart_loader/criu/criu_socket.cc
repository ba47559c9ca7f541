#include "restart_loader/criu/criu_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ppmr {
namespace {

constexpr size_t kMessageMaxBytes = 4 << 20;
constexpr size_t kPassedFilesMax = 16;  // per message; runc passes the master of a terminal

}  // namespace

Result<CriuSockets> make_criu_sockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("create a socket for", "criu");
  }
  return CriuSockets{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<CriuMessage> receive_criu_message(int socket) {
  ssize_t size = 0;
  do {
    size = recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0 || static_cast<size_t>(size) > kMessageMaxBytes) return std::nullopt;
  CriuMessage message;
  message.bytes.resize(static_cast<size_t>(size));
  iovec part{message.bytes.data(), message.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassedFilesMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != size) return std::nullopt;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const int* numbers = reinterpret_cast<const int*>(CMSG_DATA(item));
    for (size_t i = 0; i < count; ++i) message.files.emplace_back(numbers[i]);
  }
  return message;
}

bool send_criu_message(int socket, const CriuMessage& message) {
  iovec part{const_cast<char*>(message.bytes.data()), message.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassedFilesMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!message.files.empty()) {
    const size_t count = std::min(message.files.size(), kPassedFilesMax);
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(count * sizeof(int));
    int* numbers = reinterpret_cast<int*>(CMSG_DATA(item));
    for (size_t i = 0; i < count; ++i) numbers[i] = message.files[i].get();
  }
  ssize_t size = 0;
  do {
    size = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(message.bytes.size());
}

}  // namespace ppmr
