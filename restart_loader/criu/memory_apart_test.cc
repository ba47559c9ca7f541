#include "restart_loader/criu/memory_apart.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ppmr {
namespace {

TEST(MemoryApart, NumberOfAnImageIsBetweenItsPrefixAndEnd) {
  EXPECT_EQ(number_in_image_name("pagemap-shmem-785156.img", kPagesOfShared), 785156U);
  EXPECT_EQ(number_in_image_name("pagemap-shmem-18446744073709551610.img", kPagesOfShared), 0U);
  for (const char* other : {"pagemap-shmem-.img", "pagemap-shmem-5.img2", "pagemap-shmem-5",
                            "pagemap-5.img", "pagemap-apart-5.img", "pagemap-shmem-x5.img", ""}) {
    EXPECT_EQ(number_in_image_name(other, kPagesOfShared), 0U) << other;
  }
}

using Lines = std::vector<std::pair<uint64_t, std::string>>;

Lines lines_of(std::string text) {
  Lines lines;
  char* at = text.data();
  MemoryApartLine line;
  while (next_memory_apart(at, line)) lines.emplace_back(line.inode, line.path ? line.path : "");
  return lines;
}

TEST(MemoryApart, ParsesTheListsOfADumpAndOfARestore) {
  EXPECT_EQ(lines_of("5\n77\n"), (Lines{{5, ""}, {77, ""}}));
  EXPECT_EQ(lines_of("5 /proc/7/fd/9\n6 /proc/7/fd/10\n"),
            (Lines{{5, "/proc/7/fd/9"}, {6, "/proc/7/fd/10"}}));
}

TEST(MemoryApart, ADeletedFileHasADevice) {
  std::string text = "5\n77 41\n";
  char* at = text.data();
  MemoryApartLine line;
  ASSERT_TRUE(next_memory_apart(at, line));
  EXPECT_EQ(line.device, 0U);
  ASSERT_TRUE(next_memory_apart(at, line));
  EXPECT_EQ(line.inode, 77U);
  EXPECT_EQ(line.device, 41U);
  EXPECT_EQ(line.path, nullptr);
}

TEST(MemoryApart, AMalformedLineEndsTheList) {
  EXPECT_EQ(lines_of("5\nx\n6\n"), (Lines{{5, ""}}));
  EXPECT_EQ(lines_of("5x\n"), Lines{});
  EXPECT_EQ(lines_of("5 41x\n"), Lines{});
  EXPECT_EQ(lines_of("5"), Lines{});
  EXPECT_EQ(lines_of("99999999999999999999999\n"), Lines{});
}

}  // namespace
}  // namespace ppmr
