// Encrypts the chunks of a session, in place: AES-256-GCM (NIST SP 800-38D).
//
// The source encrypts a chunk in its pool slot and announces the tag over TLS. The target decrypts
// the chunk in the image store, in the pass that checks the tag. In between the ciphertext may be
// fetched repeatedly, over TCP or RDMA.
//
// Nonces. The source numbers its encryptions 1, 2, 3 ... during the whole session. The nonce is the
// number in 96 bits (SP 800-38D, 8.2.1, deterministic construction), so it never repeats.
// Keys. HKDF (RFC 5869) derives the key of an epoch from the session's secret, which both sides
// export from the TLS connection that opened the session. An epoch has kChunksPerKey numbers: at
// most 2^35 bytes, or 2^31 blocks of AES, if chunks have 1 MiB. RFC 8446, 5.5 allows 2^24.5 records
// of 2^14 bytes, 2^34.5 blocks, and SP 800-38D, 8.3 allows 2^32 encryptions per key.
// Associated data: session, epoch, number, file node, offset, length. A chunk that was recorded
// elsewhere therefore does not pass as this one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "buffer_pool/result.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

inline constexpr uint64_t kChunksPerKey = uint64_t{1} << 15;

// The place of a chunk, a part of its associated data.
struct ChunkPlace {
  uint64_t node = 0;
  uint64_t offset = 0;
};

// A thread takes a cipher context for each chunk and returns it. So contexts, and the keys in them,
// end with the session; no chunk needs an allocation or a key set-up, except after an epoch begins;
// and no lock is held across the cipher.
//
// Threads: any.
class ChunkCipher {
 public:
  using Secret = std::array<uint8_t, 32>;
  struct Options {
    wire::Token session{};
    uint64_t first_number = 1;                // tests use others
    uint64_t chunks_per_key = kChunksPerKey;  // tests use fewer
  };

  // The caller cleanses its copy of the secret.
  ChunkCipher(const Secret& secret, Options options);
  ~ChunkCipher();
  ChunkCipher(const ChunkCipher&) = delete;
  ChunkCipher& operator=(const ChunkCipher&) = delete;

  // Encrypts `bytes` in place. After an error they are neither plaintext nor valid. Errors: those
  // of OpenSSL (EIO); EOVERFLOW when the session has used all numbers.
  Result<wire::ChunkCheck> encrypt(const ChunkPlace& place, std::span<std::byte> bytes);
  // Decrypts the pieces in place, in their order. After an error their bytes are zero. Errors: EIO
  // if the bytes are not those that the source encrypted for this place.
  Status decrypt(const ChunkPlace& place, const wire::ChunkCheck& check,
                 std::span<const Landing::Piece> pieces);

 private:
  struct Context;
  class Lease;

  Status prepare(Context& context, bool encrypts, uint64_t number, const ChunkPlace& place,
                 uint32_t length);
  Status set_key(Context& context, bool encrypts, uint64_t epoch);
  Result<wire::ChunkCheck> encrypt_with(Context& context, const ChunkPlace& place,
                                        std::span<std::byte> bytes);
  Status decrypt_with(Context& context, const ChunkPlace& place, const wire::ChunkCheck& check,
                      std::span<const Landing::Piece> pieces);

  Secret secret_;
  const Options options_;
  std::atomic<uint64_t> next_number_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;  // guarded by mutex_; as many as threads at one time
};

}  // namespace ppmr
