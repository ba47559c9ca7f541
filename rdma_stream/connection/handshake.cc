#include "rdma_stream/connection/handshake.h"

#include <sys/random.h>

#include <cctype>

#include "rdma_stream/connection/session_proof.h"

namespace ppmr {
namespace {

constexpr size_t kRejectTextMaxBytes = 512;

template <typename Welcome>
Result<Welcome> await_welcome(Connection& connection, std::chrono::milliseconds timeout) {
  auto answer = receive_handshake(connection, timeout);
  if (!answer) return failure(answer.error());
  if (answer->kind == wire::HandshakeKind::kReject) {
    return failure(rejection(connection, *answer));
  }
  if (answer->kind != wire::HandshakeKind::kWelcome) {
    return failure(EPROTO, "the peer at " + connection.peer() + " is not a ppmr target");
  }
  return wire::decode<Welcome>(answer->body);
}

}  // namespace

std::string readable(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) {
    const int c = std::to_integer<int>(b);
    text += std::isprint(c) != 0 ? static_cast<char>(c) : '.';
  }
  return text;
}

void send_reject(Connection& connection, wire::RejectReason reason, const std::string& text) {
  (void)send_handshake(connection, wire::HandshakeKind::kReject,
                       wire::Reject{reason, text.substr(0, kRejectTextMaxBytes)});
}

Error rejection(const Connection& connection, const Handshake& answer) {
  auto reject = wire::decode<wire::Reject>(answer.body);
  if (!reject) return reject.error();
  int errno_value = ECONNREFUSED;
  if (reject->reason == wire::RejectReason::kBusy) errno_value = EBUSY;
  if (reject->reason == wire::RejectReason::kUnknownSession) errno_value = ESTALE;
  if (reject->reason == wire::RejectReason::kVersion) errno_value = EPROTONOSUPPORT;
  if (reject->reason == wire::RejectReason::kNotAuthenticated) errno_value = EACCES;
  return {errno_value, "the target at " + connection.peer() +
                           " refused: " + readable(std::as_bytes(std::span(reject->text)))};
}

Result<Handshake> receive_handshake(Connection& connection, std::chrono::milliseconds timeout) {
  connection.set_read_timeout(timeout);
  std::array<std::byte, wire::kHandshakePrefixBytes> bytes{};
  if (auto read = connection.read(std::span<std::byte>(bytes)); !read) {
    if (read.error().errno_value == ETIMEDOUT) {
      return failure(ETIMEDOUT, "no ppmr handshake from " + connection.peer() + " within " +
                                    std::to_string(timeout.count()) +
                                    " ms (is the peer stopped, or does it use another protocol?)");
    }
    return failure(read.error());
  }
  auto prefix = wire::decode<wire::HandshakePrefix>(bytes);
  if (prefix->magic != wire::kMagic) {
    return failure(EPROTO, "the peer at " + connection.peer() + " is not ppmr: it sent '" +
                               readable(bytes) + "'");
  }
  if (prefix->version != wire::kVersion) {
    return failure(EPROTONOSUPPORT,
                   "the peer at " + connection.peer() + " uses version " +
                       std::to_string(prefix->version) + " of the protocol, this ppmr uses " +
                       std::to_string(wire::kVersion) + ": install the same ppmr on both nodes");
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
  return await_welcome<wire::Welcome>(connection, timeout);
}

Status greet_target(Connection& connection, wire::DataHello hello, const wire::Token& token,
                    std::chrono::milliseconds timeout) {
  hello.proof = session_proof(Prover::kSource, token, hello.session, hello.stream, hello.attempt);
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kData, hello); !sent) {
    return failure(sent.error());
  }
  auto welcome = await_welcome<wire::DataWelcome>(connection, timeout);
  if (!welcome) return failure(welcome.error());
  const wire::Proof expected =
      session_proof(Prover::kTarget, token, hello.session, hello.stream, hello.attempt);
  if (!equal_secrets(welcome->proof, expected)) {
    return failure(EACCES, "data connection: the peer at " + connection.peer() +
                               " does not belong to the session");
  }
  return {};
}

Result<wire::Welcome> greet_target(Connection& connection, const wire::AgentHello& hello,
                                   std::chrono::milliseconds timeout) {
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kAgent, hello); !sent) {
    return failure(sent.error());
  }
  return await_welcome<wire::Welcome>(connection, timeout);
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
