// Tests compressed chunks from correct sources and from faulty ones.
#include "rdma_stream/session/compression.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/stream/greeting.h"
#include "tests/stream/stream_rig.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using wire::Compression;
using Bytes = std::vector<std::byte>;

constexpr CompressionMethod kLz4{Compression::kLz4, 0};
constexpr CompressionMethod kZstd{Compression::kZstd, 1};

Bytes text_of(size_t length) {
  constexpr std::string_view kWords[] = {"page ",   "slot ",   "chunk ",
                                         "source ", "target ", "pull\n"};
  std::mt19937_64 random{length};
  std::string text;
  while (text.size() < length) text += kWords[random() % std::size(kWords)];
  const auto bytes = std::as_bytes(std::span(text)).first(length);
  return {bytes.begin(), bytes.end()};
}

Bytes random_of(size_t length) {
  std::mt19937_64 random{length};
  Bytes bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(CompressionMethod, AcceptsMethodsAndLevels) {
  for (const std::string text : {"off", "lz4", "zstd:1", "zstd:19"}) {
    const auto method = parse_compression(text);
    ASSERT_TRUE(method) << text;
    EXPECT_EQ(to_string(*method), text);
  }
  EXPECT_EQ(to_string(*parse_compression("zstd")), "zstd:1");
  for (const std::string text : {"", "on", "lz4:1", "zstd:", "zstd:0", "zstd:20", "zstd:-1",
                                 "zstd:1x", "zstd:99999999999"}) {
    EXPECT_FALSE(parse_compression(text)) << text;
  }
}

// A landing between guards, which must not be overwritten.
struct Unpacking : Greeting {
  static constexpr std::byte kGuard{0xab};

  Unpacking()
      : protection(ChunkProtection::create(*connect(), {}, {}, wire::Protection::kChecksum, false)
                       .value()) {}

  // Puts `stored` where a mover would, and unpacks it to `length` bytes in pieces of these lengths.
  Status unpack(Compression kind, const Bytes& stored, uint32_t length,
                const std::vector<uint32_t>& lengths = {}) {
    memory.assign(length + 200, kGuard);
    Landing landing;
    landing.length = length;
    uint32_t at = 0;
    for (const uint32_t piece : lengths) {
      landing.pieces[landing.piece_count++] = {memory.data() + 100 + at, piece};
      at += piece;
    }
    landing.pieces[landing.piece_count++] = {memory.data() + 100 + at, length - at};
    std::copy(stored.begin(), stored.end(), memory.begin() + 100);
    wire::Announce announce;
    announce.length = length;
    announce.slot_length = static_cast<uint32_t>(stored.size());
    announce.compression = kind;
    Bytes copy = stored;
    announce.check = protection->protect({}, copy, copy).value();
    const Status unpacked = decompressor.unpack(*protection, announce, landing);
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(memory[i], kGuard);
      EXPECT_EQ(memory[memory.size() - 1 - i], kGuard) << "written past the end";
    }
    return unpacked;
  }
  Bytes landed() const { return {memory.begin() + 100, memory.end() - 100}; }
  void expect_refusal(Compression kind, const Bytes& stored, uint32_t length) {
    for (const auto& pieces : {std::vector<uint32_t>{}, std::vector<uint32_t>{length / 3, 1}}) {
      const Status unpacked = unpack(kind, stored, length, pieces);
      ASSERT_FALSE(unpacked);
      EXPECT_EQ(unpacked.error().errno_value, EIO);
      EXPECT_EQ(landed(), Bytes(length)) << "unverified bytes are left in memory";
    }
  }
  Bytes compressed(const CompressionMethod& method, const Bytes& bytes) {
    const auto result = compressor.compress(method, bytes);
    return {result.bytes.begin(), result.bytes.end()};
  }

  std::shared_ptr<ChunkProtection> protection;
  Compressor compressor{kChunkSizeMaxBytes};
  Decompressor decompressor;
  Bytes memory;
};

TEST_F(Unpacking, ChunksOfAnyLengthAndPiecesSurvive) {
  for (const CompressionMethod& method : {kLz4, kZstd, CompressionMethod{Compression::kZstd, 19}}) {
    for (const uint32_t length : {16'385u, 65'536u, 70'001u, 1u << 20}) {
      const Bytes bytes = text_of(length);
      const Bytes stored = compressed(method, bytes);
      ASSERT_LT(stored.size(), length / 2);
      for (const auto& pieces : {std::vector<uint32_t>{}, std::vector<uint32_t>{length / 2},
                                 std::vector<uint32_t>{1, 4096, 3}}) {
        ASSERT_TRUE(unpack(method.kind, stored, length, pieces)) << to_string(method);
        EXPECT_EQ(landed(), bytes);
      }
    }
  }
}

TEST_F(Unpacking, RandomBytesDoNotCompress) {
  for (const CompressionMethod& method : {kLz4, kZstd}) {
    EXPECT_TRUE(compressed(method, random_of(1 << 20)).empty());
  }
}

TEST_F(Unpacking, BombIsRefusedAndWritesNothingBeyondItsChunk) {
  const Bytes zeros(1 << 20);
  for (const CompressionMethod& method : {kLz4, kZstd}) {
    const Bytes bomb = compressed(method, zeros);
    ASSERT_LT(bomb.size(), 8192u);
    for (const uint32_t length : {8192u, 65'536u, (1u << 20) - 1}) {
      expect_refusal(method.kind, bomb, length);
    }
  }
}

TEST_F(Unpacking, ChunkThatDecompressesToLessIsRefused) {
  for (const CompressionMethod& method : {kLz4, kZstd}) {
    expect_refusal(method.kind, compressed(method, text_of(60'000)), 60'001);
  }
}

TEST_F(Unpacking, TruncatedChunkIsRefused) {
  for (const CompressionMethod& method : {kLz4, kZstd}) {
    const Bytes whole = compressed(method, text_of(60'000));
    for (size_t length = 1; length < whole.size(); length += 1 + whole.size() / 50) {
      expect_refusal(method.kind, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length)},
                     60'000);
    }
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    expect_refusal(method.kind, longer, 60'000);
  }
}

// A source may compress any bytes, but the target writes only into the place of the chunk.
TEST_F(Unpacking, DamagedChunkStaysInItsPlace) {
  std::mt19937_64 random{7};
  for (const CompressionMethod& method : {kLz4, kZstd}) {
    const Bytes whole = compressed(method, text_of(60'000));
    for (int i = 0; i < 500; ++i) {
      Bytes damaged = whole;
      for (size_t flips = random() % 4 + 1; flips > 0; --flips) {
        damaged[random() % damaged.size()] ^= static_cast<std::byte>(random() % 255 + 1);
      }
      (void)unpack(method.kind, damaged, 60'000);  // checks the guards
    }
  }
}

TEST_F(Unpacking, OnlyOneFrameOfZstdIsAccepted) {
  const Bytes frame = compressed(kZstd, text_of(30'000));
  Bytes two = frame;
  two.insert(two.end(), frame.begin(), frame.end());
  expect_refusal(Compression::kZstd, two, 60'000);
  Bytes skippable = {std::byte{0x50}, std::byte{0x2a}, std::byte{0x4d}, std::byte{0x18},
                     std::byte{0},    std::byte{0},    std::byte{0},    std::byte{0}};
  skippable.insert(skippable.end(), frame.begin(), frame.end());
  expect_refusal(Compression::kZstd, skippable, 30'000);
  Bytes old = frame;
  old[0] = std::byte{0x27};  // a frame of version 0.7
  expect_refusal(Compression::kZstd, old, 30'000);
}

TEST_F(Unpacking, WrongChecksumIsRefused) {
  const Bytes stored = compressed(kLz4, text_of(60'000));
  memory.assign(60'000, std::byte{0});
  std::copy(stored.begin(), stored.end(), memory.begin());
  Landing landing;
  landing.pieces[landing.piece_count++] = {memory.data(), 60'000};
  const wire::Announce announce{.length = 60'000,
                                .slot_length = static_cast<uint32_t>(stored.size()),
                                .compression = Compression::kLz4};
  EXPECT_FALSE(decompressor.unpack(*protection, announce, landing));
  EXPECT_EQ(memory, Bytes(60'000));
}

// ---- Whole sessions ----------------------------------------------------------------------------

struct Stream {
  const char* name;
  CompressionMethod method;
  bool encrypts;
  bool verbs;
};

class CompressedStream : public testing::TestWithParam<Stream> {};

TEST_P(CompressedStream, MovesMixedChunksWithFewerBytesOnTheWire) {
  spdlog::set_level(spdlog::level::off);
  Wiretap wiretap;
  RigOptions options;
  options.wiretap = &wiretap;
  SharedKey key;
  key.fill(42);
  if (GetParam().encrypts) options.security = Security::with_shared_key(key).value();
  if (GetParam().verbs) {
    options.verbs = RigVerbs{.source = TransportMode::kVerbs, .target = TransportMode::kVerbs};
  }
  StreamRig rig(options);
  TestSource source(rig, {.compression = GetParam().method});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& text = **source.make_file("text");
  TestFile& noise = **source.make_file("noise");
  TestFile& small = **source.make_file("small");
  constexpr size_t kLength = 40 * kChunkSizeMinBytes;
  ASSERT_TRUE(source.write(text, 0, text_of(kLength)));
  ASSERT_TRUE(source.write(noise, 0, random_of(10 * kChunkSizeMinBytes)));
  ASSERT_TRUE(source.write(small, 0, text_of(1000)));
  ASSERT_TRUE(source.seal());
  for (TestFile* file : {&text, &noise, &small}) {
    EXPECT_EQ(rig.sink().content(file->node), file->model) << file->name;
  }
  const OutletCounters sent = source.sender().counters();
  const SessionReport report = rig.receiver().sessions().at(0);
  EXPECT_EQ(sent.compression, to_string(GetParam().method));
  EXPECT_EQ(sent.verified_bytes, kLength + 10 * kChunkSizeMinBytes + 1000);
  EXPECT_EQ(report.received_bytes, sent.verified_bytes);
  EXPECT_EQ(report.wire_bytes, sent.wire_bytes);
  EXPECT_GE(sent.wire_bytes, 10 * kChunkSizeMinBytes + 1000) << "the noise was compressed";
  EXPECT_LT(sent.wire_bytes, 10 * kChunkSizeMinBytes + 1000 + kLength / 2);
  EXPECT_LT(wiretap.recorded_bytes(), sent.verified_bytes * 3 / 4);
  spdlog::set_level(spdlog::level::info);
}

INSTANTIATE_TEST_SUITE_P(Over, CompressedStream,
                         testing::Values(Stream{"Lz4", kLz4, true, false},
                                         Stream{"Zstd", kZstd, true, false},
                                         Stream{"Lz4Unencrypted", kLz4, false, false},
                                         Stream{"ZstdVerbs", kZstd, true, true}),
                         [](auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ppmr
