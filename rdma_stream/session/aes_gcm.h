// AES-256-GCM with nonces of 96 bits (NIST SP 800-38D), of libipsec-mb. It uses the vector AES
// instructions (VAES), which OpenSSL uses from 3.1 on only: 10 GB/s instead of 4.5 on one core of
// an AMD EPYC (bench/cipher_benchmark.cc). On processors without AES instructions it is slower.
#pragma once

#include <intel-ipsec-mb.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "buffer_pool/locked.h"

namespace ppmr {

// The expanded key. Both directions use the same. Threads: any, after construction.
class AesGcmKey {
 public:
  static constexpr size_t kBytes = 32;

  explicit AesGcmKey(std::span<const uint8_t, kBytes> key);

 private:
  friend class AesGcm;
  Locked<gcm_key_data> expanded_;  // the library stores to it with aligned vectors
};

// One message: any number of calls of encrypt() or of decrypt(), then tag(). Outlived by its key.
// Threads: one.
class AesGcm {
 public:
  using Nonce = std::array<uint8_t, 12>;
  using Tag = std::array<uint8_t, 16>;

  AesGcm(const AesGcmKey& key, const Nonce& nonce, std::span<const std::byte> associated);

  // `from` and `to`: the same memory, or memory that does not overlap.
  void encrypt(const std::byte* from, std::byte* to, size_t length_bytes);
  void decrypt(const std::byte* from, std::byte* to, size_t length_bytes);
  // Of the message so far. For decrypt(): compare it with the sender's, in constant time.
  Tag encrypted_tag();
  Tag decrypted_tag();

 private:
  const gcm_key_data& key_;
  gcm_context_data context_;
};

}  // namespace ppmr
