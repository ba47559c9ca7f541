// Compresses chunks before they are encrypted, and decompresses them at the target.
//
// Only chunks above kInlineMaxBytes are compressed: shorter ones travel in their announcement, and
// take only the time of the message. A chunk that saves less than a sixteenth is sent uncompressed,
// because decompressing it would cost the target more than the saving.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/session/context_pool.h"
#include "rdma_stream/session/protection.h"
#include "rdma_stream/wire/wire.h"

struct ZSTD_CCtx_s;

namespace ppmr {

inline constexpr int kZstdLevelMax = 19;

// The value of --compress.
struct CompressionMethod {
  wire::Compression kind = wire::Compression::kNone;
  int level = 0;  // level of zstd
};

// Returns "off", "lz4" or "zstd:1".
std::string to_string(const CompressionMethod& method);
// Errors: EINVAL.
Result<CompressionMethod> parse_compression(std::string_view text);

// The longest result that is worth sending.
constexpr size_t compressed_max_bytes(size_t length) { return length - length / 16; }

// The source's half. The lease contains the result of a compression.
//
// Threads: any.
class Compressor {
 public:
  struct Context {
    struct Free {
      void operator()(ZSTD_CCtx_s* context) const;
    };
    std::unique_ptr<ZSTD_CCtx_s, Free> zstd;  // null until it is used
    std::vector<std::byte> bytes;
  };
  struct Compressed {
    ContextPool<Context>::Lease context;
    std::span<const std::byte> bytes;  // empty: the chunk does not compress
  };

  // Compresses chunks of at most `chunk_size_bytes`.
  explicit Compressor(size_t chunk_size_bytes) : chunk_size_bytes_(chunk_size_bytes) {}

  // `method` must not be kNone.
  Compressed compress(const CompressionMethod& method, std::span<const std::byte> bytes);

 private:
  const size_t chunk_size_bytes_;
  ContextPool<Context> contexts_;
};

// The target's half: verifies a chunk and decompresses it to its final place. Its memory does not
// grow with the number of sources: two buffers of kCompressedMaxBytes for each CPU. Threads beyond
// that number wait for a buffer.
//
// Threads: any.
class Decompressor {
 public:
  Decompressor();
  ~Decompressor();

  // Replaces the first bytes of the landing, which are the chunk as it was in the slot, by the
  // bytes of the file. After an error all bytes of the landing are zero. Errors: EIO if the bytes
  // are not genuine, or do not decompress to exactly the length of the landing.
  Status unpack(ChunkProtection& protection, const wire::Announce& announce,
                const Landing& landing);

 private:
  struct Context;
  Status unpack_with(Context& context, ChunkProtection& protection, const wire::Announce& announce,
                     const Landing& landing);
  ContextPool<Context> contexts_;
};

// Returns the pieces of the first `length` bytes of a landing. `pieces` is the memory for the
// result.
std::span<const Landing::Piece> front_of(const Landing& landing, uint32_t length,
                                         std::array<Landing::Piece, Landing::kPiecesMax>& pieces);

}  // namespace ppmr
