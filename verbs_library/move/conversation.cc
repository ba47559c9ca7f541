#include "verbs_library/move/conversation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ppmr::verbs {

void Line::swap(Line& other) {
  std::swap(fd_, other.fd_);
  std::swap(out_, other.out_);
  std::swap(in_, other.in_);
  std::swap(sent_, other.sent_);
  std::swap(is_garbled_, other.is_garbled_);
}

void Line::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  out_.clear();
  in_.clear();
  sent_ = 0;
  is_garbled_ = false;
}

void Line::queue(const Message& message) {
  const std::vector<uint8_t> frame = encode(message);
  out_.insert(out_.end(), frame.begin(), frame.end());
}

bool Line::advance() {
  while (has_output()) {
    const ssize_t sent = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // ENOTCONN means that connect(2) has not finished.
      if (errno != EAGAIN && errno != ENOTCONN) return false;
      break;
    }
    sent_ += static_cast<size_t>(sent);
  }
  if (!has_output()) {
    out_.clear();
    sent_ = 0;
  }
  return receive();
}

bool Line::receive() {
  uint8_t chunk[4096];
  for (;;) {
    const ssize_t size = recv(fd_, chunk, sizeof(chunk), MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == ENOTCONN;
    if (size == 0) {
      errno = ECONNRESET;
      return false;
    }
    in_.insert(in_.end(), chunk, chunk + size);
    if (in_.size() > kMessageBytesMax + kFrameHeaderBytes) {
      errno = EPROTO;
      return false;
    }
  }
}

std::optional<Message> Line::take() {
  if (is_garbled_ || in_.size() < kFrameHeaderBytes) return std::nullopt;
  const auto length =
      decode_length(std::span<const uint8_t, kFrameHeaderBytes>(in_.data(), kFrameHeaderBytes));
  if (length && in_.size() < kFrameHeaderBytes + *length) return std::nullopt;
  auto message = length ? decode({in_.data() + kFrameHeaderBytes, *length}) : std::nullopt;
  if (!message) {
    is_garbled_ = true;
    shutdown(fd_, SHUT_RDWR);  // the next advance() fails
    return std::nullopt;
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<long>(kFrameHeaderBytes + *length));
  return message;
}

int start_connect(const ControlAddress& to) {
  sockaddr_storage address = {};
  socklen_t size = 0;
  auto& four = reinterpret_cast<sockaddr_in&>(address);
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, to.ip.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(to.port);
    size = sizeof(four);
  } else if (inet_pton(AF_INET6, to.ip.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(to.port);
    size = sizeof(six);
  } else {
    errno = EINVAL;
    return -1;
  }
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

void Call::fail(int error) {
  line_.close();
  state_ = State::kFailed;
  error_ = error ? error : EIO;
}

void Call::start(const ControlAddress& to, const Message& request) {
  if (!line_.is_open() || to != to_ || state_ == State::kRuns) {
    line_.close();
    to_ = to;
    const int fd = start_connect(to);
    if (fd < 0) return fail(errno);
    line_ = Line(fd);
  }
  state_ = State::kRuns;
  line_.queue(request);
  advance();
}

void Call::advance() {
  if (state_ != State::kRuns) return;
  pollfd ready = {.fd = line_.fd(), .events = POLLOUT, .revents = 0};
  // Checks whether connect(2) has failed. If so, the socket has the reason.
  if (poll(&ready, 1, 0) == 1 && (ready.revents & (POLLERR | POLLHUP))) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(line_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return fail(error);
  }
  const bool is_good = line_.advance();
  const int error = errno;
  if (auto answer = line_.take()) {
    answer_ = std::move(*answer);
    state_ = State::kAnswered;
    if (!is_good) line_.close();
  } else if (!is_good) {
    fail(error);
  }
}

Message Call::take_answer() {
  state_ = State::kIdle;
  return std::move(answer_);
}

}  // namespace ppmr::verbs
