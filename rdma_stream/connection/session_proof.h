// Proves that a plain-text connection belongs to a session: both ends of the connection have the
// token that the target's Welcome carried inside TLS. Neither end sends the token itself. For an
// RDMA connection the token is the secret of the source's offer, and the target proves that it has
// this secret.
//
// The proof is an HMAC-SHA256 (RFC 2104) with the token as key. It covers the prover (source or
// target), the session, the stream and the number of the attempt. The source counts its attempts.
// The target accepts each number once, in rising order, so a recorded hello is useless.
#pragma once

#include "rdma_stream/wire/wire.h"

namespace ppmr {

enum class Prover : uint8_t { kSource = 1, kTarget = 2 };

wire::Proof session_proof(Prover prover, const wire::Token& token, const wire::Token& session,
                          uint32_t stream, uint64_t attempt);

// The ends of an RDMA connection, as wire::Rail and the source's view of the request show them.
struct RdmaEnds {
  std::array<uint8_t, 16> source_ip{};
  uint16_t source_port = 0;
  std::array<uint8_t, 16> target_ip{};
};
// Returns the target's proof. The proof also covers the addresses, so a recorded request is useless
// to another node, even if the original request never arrived.
wire::Proof rdma_proof(const wire::Token& secret, const RdmaEnds& ends, uint16_t stream,
                       uint64_t attempt);

// Compares in constant time.
bool equal_secrets(const wire::Proof& a, const wire::Proof& b);
bool equal_secrets(const wire::Token& a, const wire::Token& b);

}  // namespace ppmr
