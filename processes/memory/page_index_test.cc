#include "processes/memory/page_index.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;

PageIndex family() {
  PageIndex index;
  index.memory_bytes = 7 * kPage;
  index.tasks.push_back({1,
                         1701,
                         {{16 * kPage, 20 * kPage, 0},
                          {30 * kPage, 31 * kPage, 4 * kPage},
                          {kAddressMax - kPage, kAddressMax, 5 * kPage}}});
  // The child shares the first range and has a page of its own.
  index.tasks.push_back(
      {2, 1702, {{16 * kPage, 20 * kPage, 0}, {30 * kPage, 31 * kPage, 6 * kPage}}});
  index.tasks.push_back({3, 1703, {}});
  return index;
}

TEST(PageIndex, IsTheSameAfterWritingAndReading) {
  const PageIndex index = family();
  const auto read = parse_page_index(to_bytes(index));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->memory_bytes, index.memory_bytes);
  ASSERT_EQ(read->tasks.size(), index.tasks.size());
  for (size_t i = 0; i < index.tasks.size(); ++i) {
    const IndexedTask& expected = index.tasks[i];
    const IndexedTask& task = read->tasks[i];
    EXPECT_EQ(task.pid, expected.pid);
    EXPECT_EQ(task.host_pid, expected.host_pid);
    ASSERT_EQ(task.ranges.size(), expected.ranges.size());
    for (size_t k = 0; k < task.ranges.size(); ++k) {
      EXPECT_EQ(task.ranges[k].start, expected.ranges[k].start);
      EXPECT_EQ(task.ranges[k].end, expected.ranges[k].end);
      EXPECT_EQ(task.ranges[k].offset, expected.ranges[k].offset);
    }
  }
}

TEST(PageIndex, TakesFewBytesForScatteredPages) {
  PageIndex index;
  index.tasks.push_back({1, 1, {}});
  for (uint64_t i = 0; i < 1000; ++i) {
    index.tasks[0].ranges.push_back({i * 256 * kPage, (i * 256 + 1) * kPage, i * kPage});
  }
  index.memory_bytes = 1000 * kPage;
  EXPECT_LT(to_bytes(index).size(), 5000U);
}

TEST(PageIndex, RefusesADamagedFile) {
  EXPECT_FALSE(parse_page_index("no index"));
  PageIndex index = family();
  index.memory_bytes = 6 * kPage;  // so the last range of the child is behind the end of the file
  EXPECT_FALSE(parse_page_index(to_bytes(index)));
  index = family();
  index.tasks[1].pid = 0;
  EXPECT_FALSE(parse_page_index(to_bytes(index)));
  index = family();
  index.tasks[0].ranges[0].end = index.tasks[0].ranges[0].start;
  EXPECT_FALSE(parse_page_index(to_bytes(index)));
  index = family();
  index.tasks[0].ranges[1].offset = uint64_t{0} - kPage;
  EXPECT_FALSE(parse_page_index(to_bytes(index)));
  index = family();
  std::swap(index.tasks[0].ranges[0], index.tasks[0].ranges[2]);
  EXPECT_FALSE(parse_page_index(to_bytes(index)));
}

}  // namespace
}  // namespace ppmr
