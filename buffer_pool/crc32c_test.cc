#include "buffer_pool/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>

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

}  // namespace
}  // namespace ppmr
