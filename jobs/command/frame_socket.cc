#include "jobs/command/frame_socket.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <span>

#include "base/crc32c.h"

namespace ppmr {
namespace {

// Offsets of fields in the header of a frame.
constexpr size_t kPositionAt = 1;
constexpr size_t kLengthAt = 9;
constexpr size_t kChecksumAt = 13;
constexpr size_t kHeaderBytes = 17;
constexpr size_t kReceiveBytes = 64 << 10;

template <typename Number>
Number number_at(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

template <typename Number>
void append(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

uint32_t checksum_of(std::string_view header, std::string_view payload) {
  return crc32c(std::as_bytes(std::span(payload)),
                crc32c(std::as_bytes(std::span(header.substr(0, kChecksumAt)))));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

FrameSocket::FrameSocket(UniqueFd socket) : socket_(std::move(socket)) {
  fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) | O_NONBLOCK);
}

void FrameSocket::send(const Frame& frame) {
  std::string header(1, static_cast<char>(frame.type));
  append(header, htobe64(frame.position));
  append(header, htobe32(static_cast<uint32_t>(frame.payload.size())));
  append(header, htobe32(checksum_of(header, frame.payload)));
  unsent_ += header;
  unsent_ += frame.payload;
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
    if (poll(&writable, 1, -1) < 0 && errno != EINTR) {
      return system_failure("wait to send to", "the command's peer");
    }
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
  const uint32_t length = be32toh(number_at<uint32_t>(received_.data() + kLengthAt));
  const auto type = static_cast<FrameType>(received_[0]);
  const auto malformed = failure(EPROTO, "the command's peer sent a malformed frame");
  if (type < FrameType::kStart || type > FrameType::kRefusal || length > kFrameMaxBytes) {
    return malformed;
  }
  if (received_.size() < kHeaderBytes + length) return std::nullopt;
  Frame frame{.type = type,
              .position = be64toh(number_at<uint64_t>(received_.data() + kPositionAt)),
              .payload = received_.substr(kHeaderBytes, length)};
  const uint32_t checksum = be32toh(number_at<uint32_t>(received_.data() + kChecksumAt));
  if (checksum != checksum_of(received_, frame.payload)) return malformed;
  received_.erase(0, kHeaderBytes + length);
  return frame;
}

}  // namespace ppmr
