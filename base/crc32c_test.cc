#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace ppmr {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

uint32_t bit_by_bit(std::span<const std::byte> bytes, uint32_t previous) {
  uint32_t register_value = ~previous;
  for (const std::byte byte : bytes) {
    register_value ^= std::to_integer<uint32_t>(byte);
    for (int i = 0; i < 8; ++i) {
      register_value = register_value >> 1 ^ (register_value & 1) * 0x82F63B78u;
    }
  }
  return ~register_value;
}

TEST(Crc32c, MatchesTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
}

TEST(Crc32c, ChecksumOfConsecutivePiecesEqualsChecksumOfTheWhole) {
  const uint32_t head = crc32c(bytes_of("1234"));
  EXPECT_EQ(crc32c(bytes_of("56789"), head), crc32c(bytes_of("123456789")));
}

TEST(Crc32c, IsZeroForNoBytes) { EXPECT_EQ(crc32c({}), 0u); }

TEST(Crc32c, AgreesWithTheDefinitionAtAnyLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(1000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t length = 0; length <= 300; ++length) {
    for (const size_t offset : {0, 1, 7, 13}) {
      const auto part = std::span(bytes).subspan(offset, length);
      EXPECT_EQ(crc32c(part, 0x12345678), bit_by_bit(part, 0x12345678)) << length;
    }
  }
}

}  // namespace
}  // namespace ppmr
