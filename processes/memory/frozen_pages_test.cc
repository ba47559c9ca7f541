#include "processes/memory/frozen_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr size_t kPages = 64;

class FrozenPages : public testing::Test {
 protected:
  void SetUp() override { memory_ = map(MAP_PRIVATE); }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  static std::byte* map(int flags) {
    void* mapped =
        mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    madvise(mapped, kPages * kPage, MADV_NOHUGEPAGE);
    return static_cast<std::byte*>(mapped);
  }
  void touch(std::byte* memory, size_t first, size_t pages) {
    for (size_t i = first; i < first + pages; ++i) memory[i * kPage] = std::byte{7};
  }
  // Starts a child that does `work` and then waits.
  ProcessIdentity start_child(const std::function<void()>& work = [] {}) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      work();
      (void)!write(ends[1], "x", 1);
      for (;;) pause();
    }
    children_.push_back(child);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return identify(child).value();
  }
  // Returns the offset of a page of the task, or nullopt if the page is not in the index.
  static std::optional<uint64_t> place(const IndexedTask& task, const std::byte* memory,
                                       size_t page) {
    const uint64_t address = reinterpret_cast<uint64_t>(memory) + page * kPage;
    for (const PageRange& range : task.ranges) {
      if (range.start <= address && address < range.end) {
        return range.offset + (address - range.start);
      }
    }
    return std::nullopt;
  }
  static void expect_in_order(const PageIndex& index) {
    uint64_t next = 0;
    for (const IndexedTask& task : index.tasks) {
      uint64_t end = 0;
      for (const PageRange& range : task.ranges) {
        EXPECT_GE(range.start, end);
        EXPECT_LE(range.offset, next);
        end = range.end;
        next = std::max(next, range.offset + range.bytes());
      }
    }
    EXPECT_EQ(next, index.memory_bytes);
  }

  std::byte* memory_ = nullptr;
  std::vector<pid_t> children_;
};

TEST_F(FrozenPages, ListsPagesInUse) {
  touch(memory_, 3, 2);
  touch(memory_, 10, 1);
  const auto child = start_child();
  const auto index = index_memory({child});
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

TEST_F(FrozenPages, ListsASharedPageOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "only root sees the frames of pages";
  touch(memory_, 0, 16);
  const auto first = start_child();
  const auto second = start_child([this] { touch(memory_, 4, 2); });
  // This process writes the pages and so gets copies of its own. The children then share their
  // pages only with each other.
  touch(memory_, 0, 16);
  const auto index = index_memory({first, second});
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

TEST_F(FrozenPages, LeavesOutPagesThatCriuWrites) {
  std::byte* shared = map(MAP_SHARED);
  touch(shared, 0, 4);
  std::byte* locked = nullptr;
  std::byte* only_read = map(MAP_PRIVATE);
  const auto child = start_child([&] {
    touch(memory_, 0, 4);
    syscall(SYS_mlock, memory_, 4 * kPage);  // the sanitizers replace mlock()
    for (size_t i = 0; i < 8; ++i) (void)*static_cast<volatile std::byte*>(only_read + i * kPage);
  });
  locked = memory_;
  const auto index = index_memory({child, start_child()});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_FALSE(place(index->tasks[0], shared, 0));
  EXPECT_FALSE(place(index->tasks[0], locked, 0));
  if (geteuid() == 0) {
    EXPECT_FALSE(place(index->tasks[0], only_read, 3));
  }
}

// The list is longer than one answer of the kernel.
TEST_F(FrozenPages, ListsManyScatteredPages) {
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
    const auto index = index_memory(tasks);
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

TEST_F(FrozenPages, NamesTheProcessThatHasEnded) {
  const auto child = start_child();
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  children_.clear();
  const auto index = index_memory({child});
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, ESRCH);
}

}  // namespace
}  // namespace ppmr
