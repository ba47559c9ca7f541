// Encrypts the chunks of a session: AES-256-GCM (NIST SP 800-38D).
//
// The source encrypts a chunk in its pool slot and announces the tag over TLS. The target decrypts
// the chunk in the same pass that checks the tag. It decrypts in place in the image store, or into
// other memory if it must then decompress the chunk into the store. The target may fetch the
// ciphertext repeatedly, over TCP or RDMA.
//
// Nonces. The source numbers its encryptions 1, 2, 3 ... during the whole session. The nonce is the
// number in 96 bits (SP 800-38D, 8.2.1, deterministic construction), so it never repeats.
// Keys. HKDF (RFC 5869) derives the key of an epoch from the session's secret, which both sides
// export from the TLS connection that opened the session. An epoch has kChunksPerKey numbers: at
// most 2^35 bytes, or 2^31 blocks of AES, if chunks have 1 MiB. RFC 8446, 5.5 allows 2^24.5 records
// of 2^14 bytes, which is 2^34.5 blocks, and SP 800-38D, 8.3 allows 2^32 encryptions per key.
// Associated data: session, epoch, number, file node, offset, length, compression and the number of
// encrypted bytes. So the target refuses a chunk that was recorded for another place.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/locked.h"
#include "base/result.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/session/aes_gcm.h"
#include "rdma_stream/session/context_pool.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

inline constexpr uint64_t kChunksPerKey = uint64_t{1} << 15;

// The place of a chunk's bytes and their compression, a part of the chunk's associated data.
struct ChunkPlace {
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t length = 0;  // in the file
  wire::Compression compression = wire::Compression::kNone;
};

// Contexts, and the keys in them, end with the session. A chunk needs a key set-up only after an
// epoch begins.
//
// Threads: any.
class ChunkCipher {
 public:
  using Secret = std::array<uint8_t, 32>;
  struct Options {
    wire::Token session{};
    uint64_t first_number = 1;                // tests use other numbers
    uint64_t chunks_per_key = kChunksPerKey;  // tests use fewer
  };

  // The caller cleanses its copy of the secret.
  ChunkCipher(const Secret& secret, Options options);
  ~ChunkCipher();
  ChunkCipher(const ChunkCipher&) = delete;
  ChunkCipher& operator=(const ChunkCipher&) = delete;

  // Encrypts `from` into `to`, which has the same length: the same memory, or other memory. After
  // an error the bytes of `to` are zero. Errors: those of OpenSSL (EIO) for a new key; EOVERFLOW
  // when the session has used all numbers.
  Result<wire::ChunkCheck> encrypt(const ChunkPlace& place, std::span<const std::byte> from,
                                   std::span<std::byte> to);
  // Decrypts the pieces in their order: in place, or into `to` if `to` is not null. After an error
  // the decrypted bytes are zero. Errors: EIO if the bytes are not the bytes that the source
  // encrypted for this place.
  Status decrypt(const ChunkPlace& place, const wire::ChunkCheck& check,
                 std::span<const Landing::Piece> pieces, std::byte* to = nullptr);

 private:
  struct Context;

  Status begin(Context& context, AesGcm::Direction direction, uint64_t number,
               const ChunkPlace& place, uint32_t slot_length);
  Status set_key(Context& context, uint64_t epoch);
  Result<wire::ChunkCheck> encrypt_with(Context& context, const ChunkPlace& place,
                                        std::span<const std::byte> from, std::span<std::byte> to);
  Status decrypt_with(Context& context, const ChunkPlace& place, const wire::ChunkCheck& check,
                      std::span<const Landing::Piece> pieces, std::byte* to);

  const Locked<Secret> secret_;
  const Options options_;
  std::atomic<uint64_t> next_number_;
  ContextPool<Context> contexts_;
};

}  // namespace ppmr
