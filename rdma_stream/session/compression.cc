#include "rdma_stream/session/compression.h"

#include <lz4.h>
#include <openssl/crypto.h>
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>

namespace ppmr {
namespace {

// The first bytes of a frame of zstd. The library also accepts frames of its first versions, whose
// decoders are old, and skippable frames.
constexpr std::array<uint8_t, 4> kZstdMagic = {0x28, 0xb5, 0x2f, 0xfd};

const char* chars(std::span<const std::byte> bytes) {
  return reinterpret_cast<const char*>(bytes.data());
}
char* chars(std::span<std::byte> bytes) { return reinterpret_cast<char*>(bytes.data()); }

Status decompress_zstd(ZSTD_DCtx* context, std::span<const std::byte> from,
                       std::span<std::byte> to) {
  if (context == nullptr) return failure(ENOMEM, "no memory to decompress a chunk");
  if (from.size() < kZstdMagic.size() ||
      std::memcmp(from.data(), kZstdMagic.data(), kZstdMagic.size()) != 0 ||
      ::ZSTD_findFrameCompressedSize(from.data(), from.size()) != from.size()) {
    return failure(EIO, "the compressed bytes are not one frame of zstd");
  }
  const size_t length =
      ::ZSTD_decompressDCtx(context, to.data(), to.size(), from.data(), from.size());
  if (::ZSTD_isError(length)) {
    return failure(EIO, std::string("the bytes do not decompress: ") + ::ZSTD_getErrorName(length));
  }
  if (length == to.size()) return {};
  return failure(EIO, "the bytes decompress to less than was announced");
}

Status decompress_lz4(std::span<const std::byte> from, std::span<std::byte> to) {
  const int length = ::LZ4_decompress_safe(chars(from), chars(to), static_cast<int>(from.size()),
                                           static_cast<int>(to.size()));
  if (length == static_cast<int>(to.size())) return {};
  return failure(EIO, length < 0 ? "the bytes do not decompress"
                                 : "the bytes decompress to less than was announced");
}

}  // namespace

std::string to_string(const CompressionMethod& method) {
  switch (method.kind) {
    case wire::Compression::kLz4:
      return "lz4";
    case wire::Compression::kZstd:
      return "zstd:" + std::to_string(method.level);
    default:
      return "off";
  }
}

Result<CompressionMethod> parse_compression(std::string_view text) {
  constexpr std::string_view kLevelPrefix = "zstd:";
  if (text == "off") return CompressionMethod{};
  if (text == "lz4") return CompressionMethod{wire::Compression::kLz4, 0};
  if (text == "zstd") return CompressionMethod{wire::Compression::kZstd, 1};
  if (text.starts_with(kLevelPrefix)) {
    const std::string_view digits = text.substr(kLevelPrefix.size());
    int level = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), level);
    if (error == std::errc{} && end == digits.end() && level >= 1 && level <= kZstdLevelMax) {
      return CompressionMethod{wire::Compression::kZstd, level};
    }
  }
  return failure(EINVAL, "'" + std::string(text) +
                             "': must be off, lz4, zstd or zstd:LEVEL (1 to " +
                             std::to_string(kZstdLevelMax) + ")");
}

// ---- The source --------------------------------------------------------------------------------

void Compressor::Context::Free::operator()(ZSTD_CCtx_s* context) const { ::ZSTD_freeCCtx(context); }

Compressor::Compressed Compressor::compress(const CompressionMethod& method,
                                            std::span<const std::byte> bytes) {
  Compressed result{contexts_.take(), {}};
  Context& context = *result.context;
  if (context.bytes.empty()) context.bytes.resize(compressed_max_bytes(chunk_size_bytes_));
  const std::span<std::byte> to =
      std::span(context.bytes)
          .first(std::min(context.bytes.size(), compressed_max_bytes(bytes.size())));
  size_t length = 0;
  if (method.kind == wire::Compression::kLz4) {
    length = static_cast<size_t>(::LZ4_compress_default(
        chars(bytes), chars(to), static_cast<int>(bytes.size()), static_cast<int>(to.size())));
  } else {
    if (!context.zstd) context.zstd.reset(::ZSTD_createCCtx());
    if (!context.zstd) return result;
    length = ::ZSTD_compressCCtx(context.zstd.get(), to.data(), to.size(), bytes.data(),
                                 bytes.size(), method.level);
    if (::ZSTD_isError(length)) length = 0;  // nearly always because `to` has no room
  }
  result.bytes = to.first(length);
  return result;
}

// ---- The target --------------------------------------------------------------------------------

struct Decompressor::Context {
  std::unique_ptr<ZSTD_DCtx, decltype(&::ZSTD_freeDCtx)> zstd{nullptr, &::ZSTD_freeDCtx};
  std::vector<std::byte> compressed = std::vector<std::byte>(wire::kCompressedMaxBytes);
  std::vector<std::byte> whole;  // empty until a landing has more than one piece
};

Decompressor::Decompressor() : contexts_(std::max(2u, std::thread::hardware_concurrency())) {}
Decompressor::~Decompressor() = default;

Status Decompressor::unpack(ChunkProtection& protection, const wire::Announce& announce,
                            const Landing& landing) {
  const auto context = contexts_.take();
  Status unpacked = unpack_with(*context, protection, announce, landing);
  if (!unpacked) {
    for (const auto& piece : std::span(landing.pieces).first(landing.piece_count)) {
      ::OPENSSL_cleanse(piece.data, piece.length);
    }
  }
  return unpacked;
}

Status Decompressor::unpack_with(Context& context, ChunkProtection& protection,
                                 const wire::Announce& announce, const Landing& landing) {
  std::array<Landing::Piece, Landing::kPiecesMax> front;
  if (announce.slot_length > context.compressed.size() ||
      announce.length > wire::kCompressedMaxBytes) {
    return failure(EIO, "a compressed chunk is too long");
  }
  const Status verified = protection.verify(
      {announce.node, announce.offset, announce.length, announce.compression}, announce.check,
      front_of(landing, announce.slot_length, front), context.compressed.data());
  if (!verified) return verified;
  const auto pieces = std::span(landing.pieces).first(landing.piece_count);
  std::span<std::byte> whole{pieces[0].data, pieces[0].length};
  if (pieces.size() > 1) {
    if (context.whole.empty()) context.whole.resize(wire::kCompressedMaxBytes);
    whole = std::span(context.whole).first(announce.length);
  }
  const auto compressed =
      std::span<const std::byte>(context.compressed).first(announce.slot_length);
  Status decompressed;
  if (announce.compression == wire::Compression::kLz4) {
    decompressed = decompress_lz4(compressed, whole);
  } else {
    if (!context.zstd) context.zstd.reset(::ZSTD_createDCtx());
    decompressed = decompress_zstd(context.zstd.get(), compressed, whole);
  }
  if (decompressed && pieces.size() > 1) {
    std::span<const std::byte> rest = whole;
    for (const Landing::Piece& piece : pieces) {
      std::copy_n(rest.begin(), piece.length, piece.data);
      rest = rest.subspan(piece.length);
    }
  }
  return decompressed;
}

std::span<const Landing::Piece> front_of(const Landing& landing, uint32_t length,
                                         std::array<Landing::Piece, Landing::kPiecesMax>& pieces) {
  size_t count = 0;
  for (uint32_t left = length; left > 0; ++count) {
    pieces[count] = landing.pieces[count];
    pieces[count].length = std::min(pieces[count].length, left);
    left -= pieces[count].length;
  }
  return std::span(pieces).first(count);
}

}  // namespace ppmr
