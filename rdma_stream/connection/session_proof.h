// Proves that a plain-text connection belongs to a session: both ends of the connection have the
// token that the target's Welcome carried inside TLS. The token itself is not sent.
//
// The proof is an HMAC-SHA256 (RFC 2104) with the token as key. It covers the prover (source or
// target), the session, the stream and the number of the attempt. The source counts its attempts.
// The target admits each number once, in rising order, so that a recorded hello is useless.
#pragma once

#include "rdma_stream/wire/wire.h"

namespace ppmr {

enum class Prover : uint8_t { kSource = 1, kTarget = 2 };

wire::Proof session_proof(Prover prover, const wire::Token& token, const wire::Token& session,
                          uint32_t stream, uint64_t attempt);

// Constant time.
bool equal_secrets(const wire::Proof& a, const wire::Proof& b);
bool equal_secrets(const wire::Token& a, const wire::Token& b);

}  // namespace ppmr
