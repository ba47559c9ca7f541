#include "jobs/command/frame_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

namespace ppmr {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kReceiveBytes = 64 << 10;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

FrameSocket::FrameSocket(UniqueFd socket) : socket_(std::move(socket)) {
  fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) | O_NONBLOCK);
}

void FrameSocket::send(FrameType type, std::string_view payload) {
  const uint32_t length = htonl(static_cast<uint32_t>(payload.size()));
  unsent_ += static_cast<char>(type);
  unsent_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  unsent_ += payload;
}

Status FrameSocket::flush() {
  while (has_unsent()) {
    const ssize_t count = ::send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && would_block()) return {};
    if (count < 0) return system_failure("send to", "the command's peer");
    unsent_.erase(0, static_cast<size_t>(count));
  }
  return {};
}

Status FrameSocket::flush_all() {
  while (has_unsent()) {
    pollfd writable{fd(), POLLOUT, 0};
    if (poll(&writable, 1, -1) < 0 && errno != EINTR) return system_failure("poll", "a socket");
    if (Status sent = flush(); !sent) return sent;
  }
  return {};
}

Status FrameSocket::receive() {
  std::array<char, kReceiveBytes> bytes;
  const ssize_t count = recv(fd(), bytes.data(), bytes.size(), 0);
  if (count < 0 && would_block()) return {};
  if (count < 0) return system_failure("receive from", "the command's peer");
  if (count == 0) return failure(ECONNRESET, "the command's peer closed the connection");
  received_.append(bytes.data(), static_cast<size_t>(count));
  return {};
}

Result<std::optional<Frame>> FrameSocket::next() {
  if (received_.size() < kHeaderBytes) return std::nullopt;
  uint32_t length = 0;
  std::memcpy(&length, received_.data() + 1, sizeof(length));
  length = ntohl(length);
  const auto type = static_cast<FrameType>(received_[0]);
  if (type < FrameType::kStart || type > FrameType::kRefusal || length > kFrameMaxBytes) {
    return failure(EPROTO, "the command's peer sent a malformed frame");
  }
  if (received_.size() < kHeaderBytes + length) return std::nullopt;
  Frame frame{type, received_.substr(kHeaderBytes, length)};
  received_.erase(0, kHeaderBytes + length);
  return frame;
}

}  // namespace ppmr
