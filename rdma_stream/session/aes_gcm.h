// AES-256-GCM with nonces of 96 bits (NIST SP 800-38D).
//
// libipsec-mb uses the vector AES instructions (VAES), which OpenSSL uses only from version 3.1 on:
// 10 GB/s instead of 4.5 GB/s on one core of an AMD EPYC (bench/memory_benchmark.cc). It needs a
// processor with AES and PCLMULQDQ instructions. On other processors OpenSSL does the work, slowly.
// Both compute the same result.
#pragma once

#include <intel-ipsec-mb.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/locked.h"
#include "base/result.h"

namespace ppmr {

enum class AesLibrary { kIpsecMb, kOpenSsl };
AesLibrary best_aes_library();  // returns the library for this processor

// Encrypts and decrypts messages with one key, one message after the other: begin(), run() for the
// parts of the message in their order, then tag() or verify(). Allocates no memory after
// construction. Errors of all members: EIO and ENOMEM from OpenSSL. Threads: one.
class AesGcm {
 public:
  static constexpr size_t kKeyBytes = 32;
  using Nonce = std::array<uint8_t, 12>;
  using Tag = std::array<uint8_t, 16>;
  enum class Direction { kEncrypt, kDecrypt };

  // Tests choose the library.
  explicit AesGcm(std::span<const uint8_t, kKeyBytes> key, AesLibrary library = best_aes_library());

  Status begin(Direction direction, const Nonce& nonce, std::span<const std::byte> associated);
  // `from` and `to` are the same memory, or memory that does not overlap.
  Status run(const std::byte* from, std::byte* to, size_t length_bytes);
  Result<Tag> tag();                    // after kEncrypt
  Result<bool> verify(const Tag& tag);  // after kDecrypt: returns whether the message has this tag

 private:
  struct Secrets {
    // Used by libipsec-mb, which stores to it with aligned vectors.
    gcm_key_data expanded_key;
    gcm_context_data message;            // used by libipsec-mb
    std::array<uint8_t, kKeyBytes> key;  // used by OpenSSL
  };
  const AesLibrary library_;
  Locked<Secrets> secrets_;
  // Null with libipsec-mb.
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> cipher_;
  Direction direction_ = Direction::kEncrypt;
};

}  // namespace ppmr
