#include "rdma_stream/handshake.h"

#include <sys/random.h>

#include <cctype>

namespace ppmr {
namespace {

// What a foreign peer said, so that a person recognises the protocol ("SSH-2.0-Open").
std::string readable(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) {
    const int c = std::to_integer<int>(b);
    text += std::isprint(c) != 0 ? static_cast<char>(c) : '.';
  }
  return text;
}

Result<wire::Welcome> await_welcome(Connection& connection, std::chrono::milliseconds timeout) {
  auto answer = receive_handshake(connection, timeout);
  if (!answer) return failure(answer.error());
  if (answer->kind == wire::HandshakeKind::kReject) {
    auto reject = wire::decode<wire::Reject>(answer->body);
    if (!reject) return failure(reject.error());
    int errno_value = ECONNREFUSED;
    if (reject->reason == wire::RejectReason::kUnknownSession) errno_value = ESTALE;
    if (reject->reason == wire::RejectReason::kVersion) errno_value = EPROTONOSUPPORT;
    return failure(errno_value, "the target at " + connection.peer() + " refused: " + reject->text);
  }
  if (answer->kind != wire::HandshakeKind::kWelcome) {
    return failure(EPROTO, "the peer at " + connection.peer() + " is not a ppmr target");
  }
  return wire::decode<wire::Welcome>(answer->body);
}

}  // namespace

Result<Handshake> receive_handshake(Connection& connection, std::chrono::milliseconds timeout) {
  connection.set_read_timeout(timeout);
  std::array<std::byte, wire::kHandshakePrefixBytes> bytes{};
  if (auto read = connection.read(std::span<std::byte>(bytes)); !read) {
    if (read.error().errno_value == ETIMEDOUT) {
      return failure(ETIMEDOUT, "no ppmr handshake from " + connection.peer() + " within " +
                                    std::to_string(timeout.count()) +
                                    " ms: stopped, or another protocol");
    }
    return failure(read.error());
  }
  auto prefix = wire::decode<wire::HandshakePrefix>(bytes);
  if (prefix->magic != wire::kMagic) {
    return failure(EPROTO, "the peer at " + connection.peer() + " does not speak ppmr: it sent '" +
                               readable(bytes) + "'");
  }
  if (prefix->version != wire::kVersion) {
    return failure(EPROTONOSUPPORT, "the peer at " + connection.peer() + " speaks version " +
                                        std::to_string(prefix->version) + " of the protocol, we " +
                                        std::to_string(wire::kVersion) +
                                        ": use the same ppmr on both sides");
  }
  if (prefix->length > wire::kHandshakeBodyMaxBytes) {
    return failure(EPROTO, "handshake of " + std::to_string(prefix->length) + " bytes from " +
                               connection.peer() + ": too long");
  }
  Handshake handshake{prefix->kind, std::vector<std::byte>(prefix->length)};
  if (auto read = connection.read(std::span<std::byte>(handshake.body)); !read) {
    return failure(read.error());
  }
  std::array<std::byte, sizeof(uint32_t)> crc_bytes;
  if (auto read = connection.read(std::span<std::byte>(crc_bytes)); !read) {
    return failure(read.error());
  }
  if (crc32c(handshake.body, crc32c(bytes)) != *wire::decode<uint32_t>(crc_bytes)) {
    return failure(EBADMSG, "handshake from " + connection.peer() + ": checksum mismatch");
  }
  return handshake;
}

Result<wire::Welcome> greet_target(Connection& connection, const wire::ControlHello& hello,
                                   std::chrono::milliseconds timeout) {
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kControl, hello); !sent) {
    return failure(sent.error());
  }
  return await_welcome(connection, timeout);
}

Status greet_target(Connection& connection, const wire::DataHello& hello,
                    std::chrono::milliseconds timeout) {
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kData, hello); !sent) {
    return failure(sent.error());
  }
  auto welcome = await_welcome(connection, timeout);
  if (!welcome) return failure(welcome.error());
  return {};
}

wire::Token random_token() {
  wire::Token token;
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t count = ::getrandom(token.data() + filled, token.size() - filled, 0);
    if (count > 0) filled += static_cast<size_t>(count);
  }
  return token;
}

}  // namespace ppmr
