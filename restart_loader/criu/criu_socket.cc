#include "restart_loader/criu/criu_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/message_socket.h"

namespace ppmr {
namespace {

constexpr std::string_view kCriu = "criu";
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
  const auto received = receive_bytes(socket, std::as_writable_bytes(std::span(message.bytes)),
                                      kPassedFilesMax, message.files, kCriu);
  if (!received || *received != message.bytes.size()) return std::nullopt;
  return message;
}

std::string peek_criu_message(int socket) {
  std::string bytes(kMessageMaxBytes, '\0');
  ssize_t size = 0;
  do {
    size = recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0 || static_cast<size_t>(size) > bytes.size()) return "";
  bytes.resize(static_cast<size_t>(size));
  return bytes;
}

bool send_criu_message(int socket, const CriuMessage& message) {
  const auto files = std::span(message.files);
  const auto sent = send_bytes(socket, std::as_bytes(std::span(message.bytes)),
                               files.first(std::min(files.size(), kPassedFilesMax)), kCriu);
  return sent && *sent == message.bytes.size();
}

}  // namespace ppmr
