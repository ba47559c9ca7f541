#include "rdma_stream/wire/wire.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ppmr::wire {
namespace {

// Fills every field with a random value.
class Filler {
 public:
  explicit Filler(uint64_t seed) : random_(seed) {}
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      value = static_cast<T>(random_());
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.resize(random_() % 300);
      for (char& c : value) c = static_cast<char>(random_());
    } else if constexpr (requires { value.begin(); }) {
      for (auto& c : value) c = static_cast<std::decay_t<decltype(c)>>(random_());
    } else {
      value.fields(*this);
    }
  }

 private:
  std::mt19937_64 random_;
};

template <typename Message>
class EachMessage : public testing::Test {};

using Messages =
    testing::Types<HandshakePrefix, ControlHello, DataHello, Welcome, Reject, FrameHeader, Claim,
                   Make, Remove, Rename, SetAttributes, Truncate, PunchHole, OpenedForWrite, Closed,
                   Forget, Announce, AnnounceInline, ManifestEntry, Seal, Abandon, SealRefused,
                   Patience, ReadBack, Release, Outcome, ReadBackReply, Space, SealRequest,
                   CheckpointRemoved, Want, Zeros, ReadRequest, ReadResponse, TransportOffer,
                   TransportChoice, AgentHello, DataWelcome, RdmaHello, AgentFrameHeader>;
TYPED_TEST_SUITE(EachMessage, Messages);

TYPED_TEST(EachMessage, SurvivesEncodingAndDecoding) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TypeParam message;
    Filler filler(seed);
    message.fields(filler);
    const auto bytes = encode(message);
    auto decoded = decode<TypeParam>(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TYPED_TEST(EachMessage, IsRejectedWhenTooShortOrTooLong) {
  TypeParam message;
  Filler filler(7);
  message.fields(filler);
  auto bytes = encode(message);
  for (size_t length = 0; length < bytes.size(); ++length) {
    // A copy of exactly this length, so a sanitizer detects a read past its end.
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<ptrdiff_t>(length));
    auto decoded = decode<TypeParam>(part);
    ASSERT_FALSE(decoded) << "at " << length << " of " << bytes.size() << " bytes";
    EXPECT_EQ(decoded.error().errno_value, EPROTO);
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode<TypeParam>(bytes));
}

TYPED_TEST(EachMessage, DecodingRandomBytesNeverReadsPastTheirEnd) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 120);
    // In every second round the numbers are small, so they are plausible as lengths.
    const uint64_t mask = round % 2 == 0 ? 0xff : 0x07;
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() & mask);
    std::span<const std::byte> rest;
    auto decoded = decode<TypeParam>(bytes, &rest);
    if (decoded) {
      EXPECT_LE(encode(*decoded).size() + rest.size(), bytes.size());
    }
  }
}

TEST(Wire, EncodesNumbersLittleEndian) {
  const auto bytes = encode(Truncate{0x0102030405060708, 1});
  EXPECT_EQ(bytes.front(), std::byte{0x08});
  EXPECT_EQ(bytes[7], std::byte{0x01});
  EXPECT_EQ(bytes[8], std::byte{0x01});
}

TEST(Wire, EncodedHeadersHaveTheirDeclaredSize) {
  EXPECT_EQ(encode(HandshakePrefix{}).size(), kHandshakePrefixBytes);
  EXPECT_EQ(encode(FrameHeader{}).size(), kFrameHeaderBytes);
  EXPECT_EQ(encode(ReadRequest{}).size(), kReadRequestBytes);
  EXPECT_EQ(encode(ReadResponse{}).size(), kReadResponseBytes);
  EXPECT_EQ(encode(RdmaHello{}).size(), kRdmaHelloBytes);
}

TEST(Wire, DecodingReturnsTheBytesThatFollowTheFields) {
  auto bytes = encode(ReadBackReply{.request = 3});
  bytes.push_back(std::byte{9});
  std::span<const std::byte> rest;
  ASSERT_TRUE(decode<ReadBackReply>(bytes, &rest));
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0], std::byte{9});
}

TEST(Wire, ChecksumCoversEveryField) {
  ReadRequest request{1, 2, 3, 4, 5, 0};
  std::set<uint32_t> checksums = {fields_crc(request)};
  for (uint32_t* field :
       {&request.id, &request.slot, &request.generation, &request.slot_offset, &request.length}) {
    ++*field;
    EXPECT_TRUE(checksums.insert(fields_crc(request)).second);
  }
}

// Returns the check of an unencrypted chunk.
ChunkCheck checksum(uint8_t value) { return {.code = {value}}; }

TEST(Wire, DigestDetectsSwappedAndMisplacedChunks) {
  const uint64_t sum = chunk_digest(0, 10, checksum(1)) + chunk_digest(10, 10, checksum(2));
  // The two checks are swapped.
  EXPECT_NE(sum, chunk_digest(0, 10, checksum(2)) + chunk_digest(10, 10, checksum(1)));
  EXPECT_NE(sum, chunk_digest(0, 10, checksum(1)) +
                     // The second chunk landed at another offset.
                     chunk_digest(20, 10, checksum(2)));
}

}  // namespace
}  // namespace ppmr::wire
