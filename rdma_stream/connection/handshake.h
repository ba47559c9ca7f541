// The first messages on every connection: protocol version, session, peer.
#pragma once

#include <chrono>

#include "base/crc32c.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct Handshake {
  wire::HandshakeKind kind;
  std::vector<std::byte> body;
};

template <typename Message>
Status send_handshake(Connection& connection, wire::HandshakeKind kind, const Message& message) {
  const auto body = wire::encode(message, wire::kHandshakeBodyMaxBytes);
  wire::HandshakePrefix prefix;
  prefix.kind = kind;
  prefix.length = static_cast<uint32_t>(body.size());
  auto bytes = wire::encode(prefix);
  bytes.insert(bytes.end(), body.begin(), body.end());
  const auto crc = wire::encode(crc32c(bytes));
  bytes.insert(bytes.end(), crc.begin(), crc.end());
  return connection.write(bytes);
}

// Errors: EPROTO when the peer uses another protocol, EPROTONOSUPPORT for another version of ppmr,
// EBADMSG for a wrong checksum, those of Connection::read.
Result<Handshake> receive_handshake(Connection& connection, std::chrono::milliseconds timeout);

// Sends the last message to a refused peer.
void send_reject(Connection& connection, wire::RejectReason reason, const std::string& text);
// Returns the error for a received reject: ESTALE for an unknown session, EACCES for a failed
// authentication, EBUSY for a target that may accept later, EPROTONOSUPPORT, ECONNREFUSED.
Error rejection(const Connection& connection, const Handshake& answer);

// The source's side of each kind of connection: sends the hello and returns the welcome. Errors:
// the reason why the target refused. On a data connection both sides prove that they have `token`
// (EACCES: the target's proof is wrong).
Result<wire::Welcome> greet_target(Connection& connection, const wire::ControlHello& hello,
                                   std::chrono::milliseconds timeout);
Status greet_target(Connection& connection, wire::DataHello hello, const wire::Token& token,
                    std::chrono::milliseconds timeout);
Result<wire::Welcome> greet_target(Connection& connection, const wire::AgentHello& hello,
                                   std::chrono::milliseconds timeout);

// Makes untrusted bytes safe for a log; the result is, for example, "SSH-2.0-Open".
std::string readable(std::span<const std::byte> bytes);

wire::Token random_token();

}  // namespace ppmr
