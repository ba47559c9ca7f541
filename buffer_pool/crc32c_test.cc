#include "buffer_pool/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace ppmr {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32c, HasTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
}

TEST(Crc32c, OfPiecesIsThatOfTheWhole) {
  const uint32_t head = crc32c(bytes_of("1234"));
  EXPECT_EQ(crc32c(bytes_of("56789"), head), crc32c(bytes_of("123456789")));
}

TEST(Crc32c, OfNothingIsZero) { EXPECT_EQ(crc32c({}), 0u); }

TEST(Crc32c, IsTheSameWithAndWithoutTheInstruction) {
  EXPECT_EQ(crc32c_by_folding(bytes_of("123456789")), 0xE3069283u);
  std::mt19937 random(1);
  std::vector<std::byte> bytes(1000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t length = 0; length <= 100; ++length) {
    for (const size_t offset : {0, 1, 7, 13}) {
      const auto part = std::span(bytes).subspan(offset, length);
      EXPECT_EQ(crc32c_by_folding(part, 0x12345678), crc32c(part, 0x12345678)) << length;
    }
  }
  EXPECT_EQ(crc32c_by_folding(bytes), crc32c(bytes));
}

}  // namespace
}  // namespace ppmr
