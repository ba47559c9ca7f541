// Proves that a plain-text connection belongs to a session: its ends have the token that the
// target's Welcome carried inside TLS. The token itself is not sent.
//
// HMAC-SHA256 (RFC 2104) with the token as key over the prover, the session, the stream and the
// number of the attempt. The source counts its attempts. The target admits each number once, in
// rising order, so that a recorded hello is useless.
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
