#include "migration/source/unsent_pages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "restart_loader/images/pagemap_image.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr bool kLazy = true, kPresent = true, kInParent = true;

// The arguments are numbers of pages.
PageRange range(uint64_t start, uint64_t end, uint64_t offset) {
  return {start * kPage, end * kPage, offset * kPage};
}
PagemapEntry lazy(uint64_t start, uint64_t end) {
  return {start * kPage, end * kPage, kLazy, !kPresent, !kInParent};
}
PagemapEntry present(uint64_t start, uint64_t end) {
  return {start * kPage, end * kPage, !kLazy, kPresent, !kInParent};
}
PagemapEntry in_parent(uint64_t start, uint64_t end) {
  return {start * kPage, end * kPage, !kLazy, !kPresent, kInParent};
}

std::string text_of(const PageIndex& index) {
  std::string text = fmt::format("{}:", index.memory_bytes / kPage);
  for (const IndexedTask& task : index.tasks) {
    text += fmt::format(" [{}]", task.pid);
    for (const PageRange& part : task.ranges) {
      text += fmt::format(" {}-{}@{}", part.start / kPage, part.end / kPage, part.offset / kPage);
    }
  }
  return text;
}

class UnsentPages : public testing::Test {
 protected:
  UnsentPages() {
    std::string path = testing::TempDir() + "/unsent-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    images_ = path;
  }
  ~UnsentPages() override { std::filesystem::remove_all(images_); }
  void dump(int pid, std::vector<PagemapEntry> entries) {
    ASSERT_TRUE(write_pagemap(fmt::format("{}/pagemap-{}.img", images_, pid), {1, entries}));
  }

  std::string images_;
};

TEST_F(UnsentPages, AreThePagesThatTheLastDumpHasLeftOut) {
  dump(17, {lazy(10, 12), in_parent(12, 18), lazy(18, 20), present(30, 31), lazy(40, 41)});
  // CRIU has written page 30 itself, and page 50 was read but never written.
  const auto split = split_index(
      {13 * kPage,
       {{17, 4017, {range(10, 20, 0), range(30, 31, 10), range(40, 41, 11), range(50, 51, 12)}}}},
      images_);
  ASSERT_TRUE(split) << split.error().message;
  EXPECT_EQ(text_of(split->unsent), "5: [17] 10-12@0 18-20@2 40-41@4");
  EXPECT_EQ(split->unsent.tasks[0].host_pid, 4017);
  EXPECT_EQ(text_of(split->sent), "6: [17] 12-18@0");
  EXPECT_TRUE(parse_page_index(to_bytes(split->unsent)));
}

TEST_F(UnsentPages, HaveOnePlaceIfProcessesShareThem) {
  dump(1, {lazy(10, 14), in_parent(14, 20)});
  // Process 2 began after the last round, so no parent has pages of it.
  dump(2, {lazy(10, 20)});
  dump(3, {in_parent(10, 20)});
  const auto split = split_index({15 * kPage,
                                  {{1, 1, {range(10, 20, 0)}},
                                   {2, 2, {range(10, 12, 0), range(12, 17, 10), range(17, 20, 7)}},
                                   {3, 3, {range(10, 20, 0)}}}},
                                 images_);
  ASSERT_TRUE(split) << split.error().message;
  EXPECT_EQ(text_of(split->unsent), "12: [1] 10-14@0 [2] 10-12@0 12-20@4 [3]");
  EXPECT_EQ(text_of(split->sent), "10: [1] 14-20@0 [2] [3] 10-14@6 14-20@0");
}

TEST_F(UnsentPages, MayBeNone) {
  dump(17, {in_parent(10, 20)});
  const auto split = split_index({10 * kPage, {{17, 17, {range(10, 20, 0)}}}}, images_);
  ASSERT_TRUE(split) << split.error().message;
  EXPECT_EQ(text_of(split->unsent), "0: [17]");
  EXPECT_TRUE(parse_page_index(to_bytes(split->unsent)));
}

TEST_F(UnsentPages, NeedTheImageOfEachProcessWithMemory) {
  EXPECT_TRUE(split_index({0, {{17, 17, {}}}}, images_)) << "a zombie has no image";
  const auto split = split_index({kPage, {{17, 17, {range(10, 11, 0)}}}}, images_);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().errno_value, ENOENT);
}

}  // namespace
}  // namespace ppmr
