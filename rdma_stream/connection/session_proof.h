// How a connection outside of TLS shows that it belongs to a session: by knowing the token that the
// target's Welcome carried inside of TLS, without saying it.
//
// HMAC-SHA256 (RFC 2104) with the token as key, over who speaks, the session, the stream, and the
// number of the attempt. A source counts its attempts, and the target admits each number once and
// in rising order: whoever heard a hello cannot use it again.
#pragma once

#include "rdma_stream/wire/wire.h"

namespace ppmr {

enum class Prover : uint8_t { kSource = 1, kTarget = 2 };

wire::Proof session_proof(Prover prover, const wire::Token& token, const wire::Token& session,
                          uint32_t stream, uint64_t attempt);

// In a time that does not tell how much of them agrees.
bool equal_secrets(const wire::Proof& a, const wire::Proof& b);
bool equal_secrets(const wire::Token& a, const wire::Token& b);

}  // namespace ppmr
