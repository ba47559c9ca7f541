#include "rdma_stream/session/chunk_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>

namespace ppmr {
namespace {

constexpr ChunkPlace kPlace{.node = 7, .offset = 4096, .length = 37};
const std::string kText = "the bytes of a process, 37 of them...";

ChunkCipher::Secret secret() {
  ChunkCipher::Secret secret;
  std::iota(secret.begin(), secret.end(), uint8_t{0});
  return secret;
}

ChunkCipher::Options options() {
  ChunkCipher::Options options;
  std::iota(options.session.begin(), options.session.end(), uint8_t{100});
  return options;
}

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

template <typename Range>
std::string hex(const Range& bytes) {
  std::string text;
  for (const auto byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto value = static_cast<uint8_t>(byte);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

// Returns the bytes as pieces of these lengths; the last piece has the rest.
std::vector<Landing::Piece> pieces_of(Bytes& bytes, std::vector<uint32_t> lengths = {}) {
  std::vector<Landing::Piece> pieces;
  uint32_t at = 0;
  for (const uint32_t length : lengths) {
    pieces.push_back({bytes.data() + at, length});
    at += length;
  }
  pieces.push_back({bytes.data() + at, static_cast<uint32_t>(bytes.size()) - at});
  return pieces;
}

// A chunk that one half of a session has encrypted, and the cipher of the other half.
struct Encrypted : testing::Test {
  Encrypted() : bytes(bytes_of(kText)), check(source.encrypt(kPlace, bytes, bytes).value()) {}

  Status decrypt(const ChunkPlace& place, const wire::ChunkCheck& given, Bytes& ciphertext) {
    return target.decrypt(place, given, pieces_of(ciphertext));
  }
  void expect_refusal(const ChunkPlace& place, const wire::ChunkCheck& given, Bytes ciphertext) {
    const Status decrypted = decrypt(place, given, ciphertext);
    ASSERT_FALSE(decrypted);
    EXPECT_EQ(decrypted.error().errno_value, EIO);
    EXPECT_EQ(ciphertext, Bytes(ciphertext.size())) << "unverified bytes are left in memory";
  }

  ChunkCipher source{secret(), options()}, target{secret(), options()};
  Bytes bytes;
  wire::ChunkCheck check;
};

// Another implementation computed the expected bytes (python3-cryptography: HKDF and AESGCM).
TEST_F(Encrypted, BytesEqualThoseOfAnotherImplementation) {
  EXPECT_EQ(check.number, 1u);
  EXPECT_EQ(hex(bytes),
            "11cc09ca271907860203059be6011205363c50d9565c35778558238a5fad668ce4cd22b047");
  EXPECT_EQ(hex(check.code), "8665990e89f088d76410728e2c15a291");
}

TEST(ChunkCipher, BytesOfALaterEpochEqualThoseOfAnotherImplementation) {
  auto later = options();
  later.first_number = 70'000;
  ChunkCipher source(secret(), later);
  Bytes bytes = bytes_of(kText);
  const auto check = source.encrypt(kPlace, bytes, bytes).value();
  EXPECT_EQ(check.number, 70'000u);
  EXPECT_EQ(hex(bytes),
            "5276cdb2c29c0cdc0ae428b6fff76b9a5c2b011839c87b36c1ed75ed0aaf087ac4f26c303c");
  EXPECT_EQ(hex(check.code), "28eb993a3c46225cf3f2d8be04eed065");
}

TEST(ChunkCipher, TagOfACompressedChunkEqualsThatOfAnotherImplementation) {
  ChunkCipher source(secret(), options());
  Bytes bytes = bytes_of(kText);
  ChunkPlace place = kPlace;
  place.length = 100;
  place.compression = wire::Compression::kZstd;
  EXPECT_EQ(hex(source.encrypt(place, bytes, bytes).value().code),
            "2c66d5c90eba5aaceac4114145d26b46");
}

TEST_F(Encrypted, ChunkIsDecryptedInPlace) {
  ASSERT_TRUE(decrypt(kPlace, check, bytes));
  EXPECT_EQ(bytes, bytes_of(kText));
}

TEST_F(Encrypted, ChunkIsDecryptedInPiecesOfAnyLength) {
  for (uint32_t first = 0; first <= bytes.size(); ++first) {
    Bytes copy = bytes;
    ASSERT_TRUE(target.decrypt(kPlace, check, pieces_of(copy, {first}))) << first;
    EXPECT_EQ(copy, bytes_of(kText));
  }
  Bytes copy = bytes;
  ASSERT_TRUE(target.decrypt(kPlace, check, pieces_of(copy, {1, 0, 15, 16, 3})));
  EXPECT_EQ(copy, bytes_of(kText));
}

TEST_F(Encrypted, SameCiphertextCanBeDecryptedAgainAfterAnotherPull) {
  const Bytes ciphertext = bytes;
  Bytes damaged = bytes;
  damaged[5] ^= std::byte{1};
  EXPECT_FALSE(decrypt(kPlace, check, damaged));
  for (int pull = 0; pull < 3; ++pull) {
    bytes = ciphertext;
    ASSERT_TRUE(decrypt(kPlace, check, bytes));
    EXPECT_EQ(bytes, bytes_of(kText));
  }
}

TEST_F(Encrypted, PlaintextIsNotAccepted) { expect_refusal(kPlace, check, bytes_of(kText)); }

TEST_F(Encrypted, EveryFlippedBitIsRefused) {
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes damaged = bytes;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    expect_refusal(kPlace, check, damaged);
  }
  for (size_t bit = 0; bit < check.code.size() * 8; ++bit) {
    auto damaged = check;
    damaged.code[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    expect_refusal(kPlace, damaged, bytes);
  }
}

TEST_F(Encrypted, ChunkIsDecryptedIntoOtherMemory) {
  Bytes plain(bytes.size());
  ASSERT_TRUE(target.decrypt(kPlace, check, pieces_of(bytes, {5, 1}), plain.data()));
  EXPECT_EQ(plain, bytes_of(kText));
  bytes[0] ^= std::byte{1};
  EXPECT_FALSE(target.decrypt(kPlace, check, pieces_of(bytes, {5, 1}), plain.data()));
  EXPECT_EQ(plain, Bytes(plain.size())) << "unverified bytes are left in memory";
}

TEST_F(Encrypted, PlaceLengthCompressionAndNumberAreAuthenticated) {
  const auto refuse = [this](auto member, auto value) {
    ChunkPlace place = kPlace;
    place.*member = value;
    expect_refusal(place, check, bytes);
  };
  refuse(&ChunkPlace::node, kPlace.node + 1);
  refuse(&ChunkPlace::offset, kPlace.offset + 1);
  refuse(&ChunkPlace::length, kPlace.length + 1);
  refuse(&ChunkPlace::compression, wire::Compression::kLz4);
  auto other = check;
  other.number += 1;
  expect_refusal(kPlace, other, bytes);
  other.number = check.number + kChunksPerKey;  // the same number of another epoch
  expect_refusal(kPlace, other, bytes);
  Bytes shorter(bytes.begin(), bytes.end() - 1);
  expect_refusal(kPlace, check, shorter);
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  expect_refusal(kPlace, check, longer);
}

TEST_F(Encrypted, SessionAndSecretAreAuthenticated) {
  auto other_session = options();
  other_session.session[15] ^= 1;
  ChunkCipher in_other_session(secret(), other_session);
  Bytes copy = bytes;
  EXPECT_FALSE(in_other_session.decrypt(kPlace, check, pieces_of(copy)));
  auto other_secret = secret();
  other_secret[31] ^= 1;
  ChunkCipher with_other_secret(other_secret, options());
  copy = bytes;
  EXPECT_FALSE(with_other_secret.decrypt(kPlace, check, pieces_of(copy)));
}

// The epoch is part of the associated data, and it selects the key.
TEST_F(Encrypted, EpochIsAuthenticated) {
  auto other_epochs = options();
  other_epochs.chunks_per_key = 1;  // number 1 is in epoch 1
  ChunkCipher other(secret(), other_epochs);
  Bytes copy = bytes;
  EXPECT_FALSE(other.decrypt(kPlace, check, pieces_of(copy)));
}

TEST(ChunkCipher, KeysChangeLongBeforeTheLimitsOfGcm) {
  constexpr uint64_t kChunkMaxBytes = uint64_t{1} << 20;  // kChunkSizeMaxBytes of the pool
  EXPECT_LE(kChunksPerKey, uint64_t{1} << 24);            // the limit of SP 800-38D is 2^32
  EXPECT_LE(kChunksPerKey * kChunkMaxBytes, uint64_t{1} << 35);
}

TEST(ChunkCipher, ChunksOfManyEpochsAreDecryptedInAnyOrder) {
  auto few = options();
  few.chunks_per_key = 3;
  ChunkCipher source(secret(), few), target(secret(), few);
  std::vector<std::pair<wire::ChunkCheck, Bytes>> chunks;
  std::set<std::string> ciphertexts;
  for (int i = 0; i < 50; ++i) {
    Bytes bytes = bytes_of(kText);
    const auto check = source.encrypt(kPlace, bytes, bytes).value();
    EXPECT_TRUE(ciphertexts.insert(hex(bytes)).second) << "the same key stream twice";
    chunks.emplace_back(check, bytes);
  }
  std::reverse(chunks.begin(), chunks.end());
  std::swap(chunks[3], chunks[40]);
  for (auto& [check, bytes] : chunks) {
    ASSERT_TRUE(target.decrypt(kPlace, check, pieces_of(bytes)));
    EXPECT_EQ(bytes, bytes_of(kText));
  }
}

TEST(ChunkCipher, NumbersAreUniqueOverAllThreads) {
  auto few = options();
  few.chunks_per_key = 100;
  ChunkCipher source(secret(), few), target(secret(), few);
  std::mutex mutex;
  std::set<uint64_t> numbers;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 500; ++i) {
        const ChunkPlace place{thread, i};
        Bytes bytes = bytes_of(kText);
        const auto check = source.encrypt(place, bytes, bytes).value();
        EXPECT_TRUE(target.decrypt(place, check, pieces_of(bytes)));
        EXPECT_EQ(bytes, bytes_of(kText));
        std::lock_guard lock(mutex);
        EXPECT_TRUE(numbers.insert(check.number).second) << check.number << " was used twice";
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(numbers.size(), 4000u);
  EXPECT_EQ(*numbers.rbegin(), 4000u);
}

TEST(ChunkCipher, RefusesToEncryptAfterTheLastNumberAndWipesTheBytes) {
  auto last = options();
  last.first_number = (uint64_t{1} << 63) - 1;
  ChunkCipher source(secret(), last);
  Bytes bytes = bytes_of(kText);
  EXPECT_TRUE(source.encrypt(kPlace, bytes, bytes));
  for (int i = 0; i < 3; ++i) {
    bytes = bytes_of(kText);
    const auto refused = source.encrypt(kPlace, bytes, bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().errno_value, EOVERFLOW);
    EXPECT_EQ(bytes, Bytes(bytes.size()));
  }
}

TEST(ChunkCipher, ChunksOfAnyLengthAreDecryptedToTheSameBytes) {
  ChunkCipher source(secret(), options()), target(secret(), options());
  for (const size_t length : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4095},
                              size_t{65'536}, size_t{1} << 20}) {
    Bytes plain(length);
    for (size_t i = 0; i < length; ++i) plain[i] = static_cast<std::byte>(i * 31 >> 3);
    Bytes bytes = plain;
    const auto check = source.encrypt(kPlace, bytes, bytes).value();
    EXPECT_NE(bytes, plain);
    const auto half = static_cast<uint32_t>(length / 2);
    ASSERT_TRUE(target.decrypt(kPlace, check, pieces_of(bytes, {half})));
    EXPECT_EQ(bytes, plain);
  }
}

}  // namespace
}  // namespace ppmr
