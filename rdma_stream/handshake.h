// The first exchange on every connection: who are you, which version, which session.
#pragma once

#include <chrono>

#include "buffer_pool/crc32c.h"
#include "rdma_stream/connection.h"
#include "rdma_stream/wire.h"

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

// The source's side of both kinds of connection: sends the hello, gives the welcome or, as an
// error, why the target said no (ESTALE: it does not know the session).
Result<wire::Welcome> greet_target(Connection& connection, const wire::ControlHello& hello,
                                   std::chrono::milliseconds timeout);
Status greet_target(Connection& connection, const wire::DataHello& hello,
                    std::chrono::milliseconds timeout);

wire::Token random_token();

}  // namespace ppmr
