// Tests frozen processes. live_rounds_test.cc and tracked_processes_test.cc test running ones.
#include "processes/memory/live_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <array>

#include "processes/memory/live_memory_rig.h"

namespace ppmr {
namespace {

Result<PageIndex> index_frozen(const std::vector<ProcessIdentity>& tasks) {
  auto index = LiveMemory().index_frozen(tasks);
  if (!index) return failure(index.error());
  EXPECT_EQ(index->sent_bytes, 0U);
  EXPECT_EQ(index->all.memory_bytes, index->unsent.memory_bytes);
  return std::move(index->all);
}

TEST_F(LiveMemoryTest, ListsPagesInUse) {
  touch(memory_, 3, 2);
  touch(memory_, 10, 1);
  const auto child = start_child();
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  expect_in_order(*index);
  ASSERT_EQ(index->tasks.size(), 1U);
  const IndexedTask& task = index->tasks[0];
  EXPECT_EQ(task.pid, child.pid);
  EXPECT_EQ(task.host_pid, child.pid);
  EXPECT_FALSE(place(task, memory_, 2));
  ASSERT_TRUE(place(task, memory_, 3));
  EXPECT_EQ(*place(task, memory_, 4), *place(task, memory_, 3) + kPage);
  EXPECT_FALSE(place(task, memory_, 5));
  EXPECT_TRUE(place(task, memory_, 10));
}

TEST_F(LiveMemoryTest, ListsASharedPageOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "only root sees the frames of pages";
  touch(memory_, 0, 16);
  const auto first = start_child();
  const auto second = start_child([this] { touch(memory_, 4, 2); });
  // This process writes the pages and so gets copies of its own. The children then share their
  // pages only with each other.
  touch(memory_, 0, 16);
  const auto index = index_frozen({first, second});
  ASSERT_TRUE(index) << index.error().message;
  expect_in_order(*index);
  ASSERT_EQ(index->tasks.size(), 2U);
  for (size_t page = 0; page < 16; ++page) {
    const auto one = place(index->tasks[0], memory_, page);
    const auto other = place(index->tasks[1], memory_, page);
    ASSERT_TRUE(one && other) << page;
    if (page == 4 || page == 5) {
      EXPECT_NE(*one, *other) << page;
    } else {
      EXPECT_EQ(*one, *other) << page;
    }
  }
}

TEST_F(LiveMemoryTest, LeavesOutPagesThatCriuWrites) {
  std::byte* shared = map(MAP_SHARED);
  touch(shared, 0, 4);
  std::byte* locked = nullptr;
  std::byte* only_read = map(MAP_PRIVATE);
  const auto child = start_child([&] {
    touch(memory_, 0, 4);
    syscall(SYS_mlock, memory_, 4 * kPage);  // the sanitizers replace mlock()
    read_pages(only_read, 8);
  });
  locked = memory_;
  const auto index = index_frozen({child, start_child()});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_FALSE(place(index->tasks[0], shared, 0));
  EXPECT_FALSE(place(index->tasks[0], locked, 0));
  if (geteuid() == 0 && has_page_of_zeros()) {
    EXPECT_FALSE(place(index->tasks[0], only_read, 3));
  }
}

// /proc/PID/smaps lists the properties of each mapping after its line, also for mappings of files.
TEST_F(LiveMemoryTest, ListsMemoryBeforeALockedFile) {
  const int file = memfd_create("locked", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(kPage)), 0);
  const auto child = start_child([&] {
    touch(memory_, 0, 4);
    std::byte* const next = memory_ + 4 * kPage;
    mmap(next, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    syscall(SYS_mlock, next, kPage);
  });
  close(file);
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_TRUE(place(index->tasks[0], memory_, 3));
  EXPECT_FALSE(place(index->tasks[0], memory_, 4));
}

// A kernel can have the scan without write-protection. The scan then shows no page as unwritten.
TEST_F(LiveMemoryTest, ShowsPagesThatTheSoftDirtyBitsCountAsUnwritten) {
  constexpr char kSoftDirtyBits = '4';
  touch(memory_, 3, 2);
  const auto child = start_child();
  const UniqueFd file(
      open(("/proc/" + std::to_string(child.pid) + "/clear_refs").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(write(file.get(), &kSoftDirtyBits, 1), 1);
  const auto start = reinterpret_cast<uint64_t>(memory_);
  const CleanFrames none;
  CleanFrames frames;
  std::vector<AddressRange> unwritten;
  const auto ignore = [](const ScannedRegion&) { return Status{}; };
  ASSERT_TRUE(PageTables::open(child.pid, &none)
                  ->find_pages_in_use({start, start + kPages * kPage}, ignore, &frames));
  auto tables = PageTables::open(child.pid, &frames);
  ASSERT_TRUE(tables) << tables.error().message;
  const Status found =
      tables->find_pages_in_use({start, start + kPages * kPage}, [&](const ScannedRegion& region) {
        if (region.is_unwritten) unwritten.push_back(region.range);
        return Status{};
      });
  EXPECT_TRUE(found);
  EXPECT_EQ(unwritten, (std::vector<AddressRange>{{start + 3 * kPage, start + 5 * kPage}}));
}

TEST_F(LiveMemoryTest, LeavesOutMemoryThatWasOnlyRead) {
  const Status scanned = PageTables::open(getpid())->scan({0, 0x1000}, ScanFor::kInUse,
                                                          [](auto&) { return Status{}; });
  if (!scanned && geteuid() != 0) {
    GTEST_SKIP() << "NOT TESTED: pages of zeros: before Linux 6.7 only root sees them";
  }
  if (!has_page_of_zeros()) GTEST_SKIP() << "NOT TESTED: this kernel has no common page of zeros";
  const auto child = start_child([&] {
    read_pages(memory_, 8);
    touch(memory_, 5, 1);
  });
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_FALSE(place(index->tasks[0], memory_, 4));
  EXPECT_TRUE(place(index->tasks[0], memory_, 5));
}

// The list is longer than one answer of the kernel.
TEST_F(LiveMemoryTest, ListsManyScatteredPages) {
  constexpr size_t kMany = 5000;
  constexpr size_t kSparseBytes = kMany * 600 * kPage;
  void* mapped = mmap(nullptr, kSparseBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  madvise(mapped, kSparseBytes, MADV_NOHUGEPAGE);
  auto* sparse = static_cast<std::byte*>(mapped);
  const auto child = start_child([&] {
    for (size_t i = 0; i < kMany; ++i) touch(sparse, i * 600 + i % 7, 1);
  });
  for (const auto& tasks : {std::vector{child}, std::vector{child, start_child()}}) {
    const auto index = index_frozen(tasks);
    ASSERT_TRUE(index) << index.error().message;
    expect_in_order(*index);
    for (size_t i = 0; i < kMany; ++i) {
      ASSERT_TRUE(place(index->tasks[0], sparse, i * 600 + i % 7)) << i;
      ASSERT_FALSE(place(index->tasks[0], sparse, i * 600 + i % 7 + 1)) << i;
    }
    EXPECT_TRUE(parse_page_index(to_bytes(*index)));
  }
  munmap(mapped, kSparseBytes);
}

TEST_F(LiveMemoryTest, FrozenTreeCannotBeListedIfAProcessHasEnded) {
  const auto child = start_child();
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  children_.clear();
  const auto index = index_frozen({child});
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, ESRCH);
}

TEST(Overlay, ReplacesPlaces) {
  const auto plain = [](const std::vector<PageRange>& ranges) {
    std::vector<std::array<uint64_t, 3>> all;
    for (const PageRange& range : ranges) all.push_back({range.start, range.end, range.offset});
    return all;
  };
  using Plain = std::vector<std::array<uint64_t, 3>>;
  EXPECT_EQ(plain(overlay({}, {{1, 3, 7}})), (Plain{{1, 3, 7}}));
  EXPECT_EQ(plain(overlay({{1, 9, 100}}, {})), (Plain{{1, 9, 100}}));
  EXPECT_EQ(plain(overlay({{1, 9, 100}}, {{3, 5, 200}})),
            (Plain{{1, 3, 100}, {3, 5, 200}, {5, 9, 104}}));
  EXPECT_EQ(plain(overlay({{2, 4, 0}, {6, 8, 2}}, {{1, 7, 50}, {9, 10, 60}})),
            (Plain{{1, 7, 50}, {7, 8, 3}, {9, 10, 60}}));
  EXPECT_EQ(plain(overlay({{5, 6, 0}}, {{1, 2, 50}, {8, 9, 60}})),
            (Plain{{1, 2, 50}, {5, 6, 0}, {8, 9, 60}}));
  EXPECT_EQ(plain(overlay({{0, 10, 0}}, {{2, 4, kNoPlace}})), (Plain{{0, 2, 0}, {4, 10, 4}}));
}

TEST(Within, KeepsThePlacesInsideMappings) {
  const auto kept = within({{1, 5, 10}, {7, 9, 30}}, {{2, 4}, {8, 20}, {30, 40}});
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[0].start, 2U);
  EXPECT_EQ(kept[0].end, 4U);
  EXPECT_EQ(kept[0].offset, 11U);
  EXPECT_EQ(kept[1].start, 8U);
  EXPECT_EQ(kept[1].end, 9U);
  EXPECT_EQ(kept[1].offset, 31U);
  EXPECT_TRUE(within({{1, 5, 10}}, {}).empty());
}

TEST_F(LiveMemoryTest, ListingThePagesOfAnEndedProcessFailsWithEsrch) {
  const auto child = start_child();
  auto tables = PageTables::open(child.pid);
  ASSERT_TRUE(tables) << tables.error().message;
  kill(child.pid, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid), &ended, WEXITED | WNOWAIT), 0);
  const auto start = reinterpret_cast<uint64_t>(memory_);
  const Status listed =
      tables->list({start, start + kPage}, [](uint64_t, PageEntry) { return Status(); });
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().errno_value, ESRCH);
}

}  // namespace
}  // namespace ppmr
