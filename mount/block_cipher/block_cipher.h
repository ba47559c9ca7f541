// Encrypts blocks at rest: XTS-AES-256 (NIST SP 800-38E, IEEE 1619), as disks are encrypted. A
// block has the same length encrypted, and may be written again: the number of the block is its
// tweak. XTS does not detect changes. Whoever reads a block verifies its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "buffer_pool/locked.h"
#include "buffer_pool/result.h"

namespace ppmr {

// Threads: any.
class BlockCipher {
 public:
  static constexpr size_t kBlockBytes = 4096;
  using Key = std::array<uint8_t, 64>;  // two keys of AES-256

  explicit BlockCipher(const Key& key) : key_(key) {}
  // With a new random key. Throws std::runtime_error when the system has no random numbers.
  BlockCipher();

  const Key& key() const { return *key_; }
  // Whole blocks, of which the first has the number `first`. `to`: the same memory, or memory that
  // does not overlap. Errors: ENOMEM; EIO from OpenSSL.
  Status encrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const;
  Status decrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const;

 private:
  Status run(bool encrypts, uint64_t first, std::span<const std::byte> from, std::byte* to) const;

  Locked<Key> key_;
};

}  // namespace ppmr
