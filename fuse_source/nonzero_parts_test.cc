#include "fuse_source/nonzero_parts.h"

#include <gtest/gtest.h>

#include "processes/memory/page_index.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;

TEST(FindNonzero, SkipsLongRunsOfZeroPages) {
  std::vector<std::byte> bytes(64 * kPage);
  std::vector<std::span<const std::byte>> parts;
  find_nonzero(bytes, parts);
  EXPECT_TRUE(parts.empty());
  bytes[2 * kPage + 17] = std::byte{1};
  bytes[5 * kPage + 4095] = std::byte{1};  // a short run of zeros before it: still one part
  bytes[40 * kPage] = std::byte{1};
  find_nonzero(bytes, parts);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].data() - bytes.data(), static_cast<ptrdiff_t>(2 * kPage));
  EXPECT_EQ(parts[0].size(), 4 * kPage);
  EXPECT_EQ(parts[1].data() - bytes.data(), static_cast<ptrdiff_t>(40 * kPage));
  EXPECT_EQ(parts[1].size(), kPage);
}

}  // namespace
}  // namespace ppmr
