#include "rdma_stream/connection/session_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cassert>

namespace ppmr {
namespace {

struct ProvedFields {
  std::array<char, 8> label = {'p', 'p', 'm', 'r', 'd', 'a', 't', 'a'};
  Prover prover = Prover::kSource;
  wire::Token session{};
  uint32_t stream = 0;
  uint64_t attempt = 0;
  template <typename F>
  void fields(F&& field) {
    field(label), field(prover), field(session), field(stream), field(attempt);
  }
};

struct ProvedRdmaFields {
  std::array<char, 8> label = {'p', 'p', 'm', 'r', 'r', 'd', 'm', 'a'};
  RdmaEnds ends;
  uint16_t stream = 0;
  uint64_t attempt = 0;
  template <typename F>
  void fields(F&& field) {
    field(label), field(ends.source_ip), field(ends.source_port), field(ends.target_ip),
        field(stream), field(attempt);
  }
};

wire::Proof authenticate(const wire::Token& key, const std::vector<std::byte>& bytes) {
  wire::Proof proof{};
  unsigned int length = 0;
  [[maybe_unused]] const auto* made = ::HMAC(
      ::EVP_sha256(), key.data(), static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), proof.data(), &length);
  assert(made != nullptr && length == proof.size());
  return proof;
}

}  // namespace

wire::Proof rdma_proof(const wire::Token& secret, const RdmaEnds& ends, uint16_t stream,
                       uint64_t attempt) {
  ProvedRdmaFields fields;
  fields.ends = ends;
  fields.stream = stream;
  fields.attempt = attempt;
  return authenticate(secret, wire::encode(fields));
}

wire::Proof session_proof(Prover prover, const wire::Token& token, const wire::Token& session,
                          uint32_t stream, uint64_t attempt) {
  ProvedFields fields;
  fields.prover = prover;
  fields.session = session;
  fields.stream = stream;
  fields.attempt = attempt;
  return authenticate(token, wire::encode(fields));
}

bool equal_secrets(const wire::Proof& a, const wire::Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool equal_secrets(const wire::Token& a, const wire::Token& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ppmr
