// AES-256-GCM with nonces of 96 bits (NIST SP 800-38D).
//
// libipsec-mb uses the vector AES instructions (VAES), which OpenSSL does from 3.1 on only: 10 GB/s
// instead of 4.5 on one core of an AMD EPYC (bench/memory_benchmark.cc). It needs a processor with
// AES and PCLMULQDQ instructions; on others OpenSSL does the work, slowly. Both compute the same.
#pragma once

#include <intel-ipsec-mb.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "buffer_pool/locked.h"
#include "buffer_pool/result.h"

namespace ppmr {

enum class AesLibrary { kIpsecMb, kOpenSsl };
AesLibrary best_aes_library();  // for this processor

// Serves both directions. Threads: any, after construction.
class AesGcmKey {
 public:
  static constexpr size_t kBytes = 32;

  // Tests choose the library.
  explicit AesGcmKey(std::span<const uint8_t, kBytes> key, AesLibrary library = best_aes_library());

 private:
  friend class AesGcm;
  struct Forms {
    gcm_key_data expanded;  // of libipsec-mb, which stores to it with aligned vectors
    std::array<uint8_t, kBytes> plain;
  };
  const AesLibrary library_;
  Locked<Forms> forms_;
};

// One message: run() for its parts, in their order, then tag() or verify(). Outlived by its key.
// Errors of all: EIO and ENOMEM from OpenSSL. Threads: one.
class AesGcm {
 public:
  using Nonce = std::array<uint8_t, 12>;
  using Tag = std::array<uint8_t, 16>;
  enum class Direction { kEncrypt, kDecrypt };

  static Result<AesGcm> begin(const AesGcmKey& key, Direction direction, const Nonce& nonce,
                              std::span<const std::byte> associated);

  // `from` and `to`: the same memory, or memory that does not overlap.
  Status run(const std::byte* from, std::byte* to, size_t length_bytes);
  Result<Tag> tag();                    // after kEncrypt
  Result<bool> verify(const Tag& tag);  // after kDecrypt: whether the message has this tag

 private:
  AesGcm(const AesGcmKey& key, Direction direction)
      : key_(key.forms_->expanded), direction_(direction) {}

  const gcm_key_data& key_;
  const Direction direction_;
  gcm_context_data context_{};
  // Null: libipsec-mb is used.
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> cipher_{nullptr,
                                                                            &::EVP_CIPHER_CTX_free};
};

}  // namespace ppmr
