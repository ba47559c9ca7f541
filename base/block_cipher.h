// Encrypts blocks of a file with XTS-AES-256 (NIST SP 800-38E, IEEE 1619), like disk encryption.
// The tweak is the number of the block, so a block can be written again, and encryption does not
// change its length. XTS does not detect changes: the caller verifies the decrypted bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/locked.h"
#include "base/result.h"

namespace ppmr {

// Threads: any.
class BlockCipher {
 public:
  static constexpr size_t kBlockBytes = 4096;
  using Key = std::array<uint8_t, 64>;  // two keys of AES-256

  // Creates a cipher with a random key. Errors: EIO when the system has no random numbers.
  static Result<std::shared_ptr<const BlockCipher>> with_new_key();
  explicit BlockCipher(const Key& key) : key_(key) {}

  const Key& key() const { return *key_; }
  // Encrypts or decrypts whole blocks. The first block has the number `first`. `to` is the same
  // memory as `from`, or memory that does not overlap with it. Errors: ENOMEM; EIO from OpenSSL.
  Status encrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const;
  Status decrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const;

 private:
  BlockCipher() = default;
  Status run(bool encrypts, uint64_t first, std::span<const std::byte> from, std::byte* to) const;

  Locked<Key> key_;
};

}  // namespace ppmr
