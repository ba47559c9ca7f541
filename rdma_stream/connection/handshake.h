// The first exchange on every connection: who are you, which version, which session.
#pragma once

#include <chrono>

#include "buffer_pool/crc32c.h"
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

// Errors: EPROTO when the peer speaks another protocol, EPROTONOSUPPORT when it speaks another
// version of ours, EBADMSG for a wrong checksum, those of Connection::read.
Result<Handshake> receive_handshake(Connection& connection, std::chrono::milliseconds timeout);

// The last word to a peer that is not served.
void send_reject(Connection& connection, wire::RejectReason reason, const std::string& text);
// What such a word means to the one who hears it: ESTALE for a session that is not known, EACCES
// for a peer that must prove who it is and cannot, EPROTONOSUPPORT, ECONNREFUSED.
Error rejection(const Connection& connection, const Handshake& answer);

// The source's side of all kinds of connection: sends the hello, gives the welcome or, as an
// error, why the target said no. A data connection is shown to be of the session that `token`
// admits to, by both sides (EACCES: the target's proof is wrong).
Result<wire::Welcome> greet_target(Connection& connection, const wire::ControlHello& hello,
                                   std::chrono::milliseconds timeout);
Status greet_target(Connection& connection, wire::DataHello hello, const wire::Token& token,
                    std::chrono::milliseconds timeout);
Result<wire::Welcome> greet_target(Connection& connection, const wire::AgentHello& hello,
                                   std::chrono::milliseconds timeout);

// What a stranger said, fit for a log: "SSH-2.0-Open".
std::string readable(std::span<const std::byte> bytes);

wire::Token random_token();

}  // namespace ppmr
