#include "processes/memory/memory_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/unique_fd.h"
#include "processes/memory/page_tables.h"
#include "processes/process_identity.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;

// Pages that this process shares with a child process. The child waits until it is killed.
class MemoryReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    void* mapped =
        mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
    for (size_t i = 0; i < kPages; ++i) {
      std::memset(memory_ + i * kPage, static_cast<int>(i + 1), kPage);
    }
    child_ = fork();
    if (child_ == 0) {
      for (;;) pause();
    }
    ASSERT_GT(child_, 0);
  }
  void TearDown() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    munmap(memory_, kPages * kPage);
  }
  PageRange range(size_t first, size_t pages, size_t file_page) const {
    const uint64_t start = reinterpret_cast<uint64_t>(memory_) + first * kPage;
    return {start, start + pages * kPage, file_page * kPage};
  }
  // Reads the whole file in slots of `slot_pages`, and returns the first byte of each page.
  static std::vector<int> read_all(const PageIndex& index, size_t slot_pages) {
    auto reader = MemoryReader::create(index);
    EXPECT_TRUE(reader) << reader.error().message;
    std::vector<std::byte> slot(slot_pages * kPage);
    std::vector<int> pages;
    for (uint64_t offset = 0; reader && offset < index.memory_bytes; offset += slot.size()) {
      const auto bytes =
          std::span(slot).first(std::min<uint64_t>(slot.size(), index.memory_bytes - offset));
      const Status read = reader->read(offset, bytes);
      EXPECT_TRUE(read) << read.error().message;
      if (!read) break;
      for (size_t at = 0; at < bytes.size(); at += kPage) {
        EXPECT_EQ(std::memcmp(bytes.data() + at, bytes.data() + at + 1, kPage - 1), 0);
        pages.push_back(static_cast<int>(bytes[at]));
      }
    }
    return pages;
  }

  static constexpr size_t kPages = 64;
  std::byte* memory_ = nullptr;
  pid_t child_ = 0;
};

TEST_F(MemoryReaderTest, ReadsRangesInTheOrderOfTheFile) {
  PageIndex index{6 * kPage, {{1, child_, {range(3, 1, 0), range(10, 4, 1), range(40, 1, 5)}}}};
  const std::vector<int> expected = {4, 11, 12, 13, 14, 41};
  EXPECT_EQ(read_all(index, 2), expected);
  EXPECT_EQ(read_all(index, 4), expected);
  EXPECT_EQ(read_all(index, 100), expected);
}

TEST_F(MemoryReaderTest, ReadsASharedPageOnce) {
  PageIndex index{5 * kPage,
                  {{1, child_, {range(0, 2, 0), range(5, 1, 2)}},
                   {2, child_, {range(0, 2, 0), range(8, 1, 3)}},
                   // The child begins with a shared page and continues with a page of its own.
                   {3, child_, {range(8, 2, 3)}}}};
  EXPECT_EQ(read_all(index, 3), (std::vector<int>{1, 2, 6, 9, 10}));
}

// The next process has other bytes at the same addresses.
TEST_F(MemoryReaderTest, ReadsFromTheProcessThatHasTheMemory) {
  for (size_t i = 0; i < kPages; ++i) {
    std::memset(memory_ + i * kPage, static_cast<int>(i + 101), kPage);
  }
  const pid_t other = fork();
  if (other == 0) {
    for (;;) pause();
  }
  // The last range of the first process is shared, so the reader's list for it ends before its
  // memory does.
  PageIndex index{4 * kPage,
                  {{1, child_, {range(0, 2, 0), range(5, 1, 0)}}, {2, other, {range(0, 2, 2)}}}};
  EXPECT_EQ(read_all(index, 4), (std::vector<int>{1, 2, 101, 102}));
  EXPECT_EQ(read_all(index, 3), (std::vector<int>{1, 2, 101, 102}));
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST_F(MemoryReaderTest, ReadsMoreRangesThanOneCallTakes) {
  PageIndex index{0, {}};
  std::vector<int> expected;
  for (int task = 0; task < 60; ++task) {
    IndexedTask entry{task + 1, child_, {}};
    for (size_t page = 0; page < kPages; page += 2) {
      entry.ranges.push_back(range(page, 1, index.memory_bytes / kPage));
      expected.push_back(static_cast<int>(page + 1));
      index.memory_bytes += kPage;
    }
    index.tasks.push_back(entry);
  }
  EXPECT_EQ(read_all(index, 256), expected);
}

TEST_F(MemoryReaderTest, ReadsMemoryWithoutReadPermission) {
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  mprotect(memory_ + 2 * kPage, 2 * kPage, PROT_NONE);
  child_ = fork();
  if (child_ == 0) {
    for (;;) pause();
  }
  PageIndex index{6 * kPage, {{1, child_, {range(0, 6, 0)}}}};
  EXPECT_EQ(read_all(index, 6), (std::vector<int>{1, 2, 3, 4, 5, 6}));
  mprotect(memory_ + 2 * kPage, 2 * kPage, PROT_READ | PROT_WRITE);
}

TEST_F(MemoryReaderTest, NamesTheProcessThatHasEnded) {
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  PageIndex index{kPage, {{1, child_, {range(0, 1, 0)}}}};
  std::vector<std::byte> bytes(kPage);
  const Status read = MemoryReader::create(index)->read(0, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, ESRCH);
  EXPECT_NE(read.error().message.find(std::to_string(child_)), std::string::npos);
}

TEST_F(MemoryReaderTest, NamesAnAddressWithoutMemory) {
  PageIndex index{kPage, {{1, child_, {{kPage, 2 * kPage, 0}}}}};
  std::vector<std::byte> bytes(kPage);
  const Status read = MemoryReader::create(index)->read(0, bytes);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("0x1000"), std::string::npos) << read.error().message;
}

TEST_F(MemoryReaderTest, RefusesAnIndexThatLeavesMemoryOut) {
  for (const PageIndex& index :
       {PageIndex{2 * kPage, {{1, child_, {range(0, 1, 1)}}}},
        PageIndex{2 * kPage, {{1, child_, {range(0, 1, 0)}}}}, PageIndex{kPage, {}}}) {
    const auto reader = MemoryReader::create(index);
    ASSERT_FALSE(reader);
    EXPECT_EQ(reader.error().errno_value, EPROTO);
  }
}

TEST_F(MemoryReaderTest, ReadsAnyPartOfTheFile) {
  PageIndex index{8 * kPage,
                  {{1, child_, {range(0, 3, 0), range(10, 1, 3)}},
                   // Two pages of the first process, then one of its own.
                   {2, child_, {range(20, 3, 2), range(30, 3, 5)}}}};
  const std::vector<int> expected = {1, 2, 3, 11, 23, 31, 32, 33};
  ASSERT_EQ(read_all(index, 8), expected);
  const MemoryReader first = std::move(MemoryReader::create(index).value());
  MemoryReader reader = first.for_another_thread();
  for (size_t begin = 8; begin-- > 0;) {
    for (size_t pages = 0; pages <= 8 - begin; ++pages) {
      std::vector<std::byte> bytes(pages * kPage);
      ASSERT_TRUE(reader.read(begin * kPage, bytes));
      for (size_t i = 0; i < pages; ++i) {
        EXPECT_EQ(static_cast<int>(bytes[i * kPage]), expected[begin + i]);
        EXPECT_EQ(bytes[i * kPage], bytes[(i + 1) * kPage - 1]);
      }
    }
  }
}

TEST_F(MemoryReaderTest, RefusesToReadBehindTheEnd) {
  MemoryReader reader =
      std::move(MemoryReader::create({2 * kPage, {{1, child_, {range(0, 2, 0)}}}}).value());
  std::vector<std::byte> bytes(2 * kPage);
  EXPECT_TRUE(reader.read(0, bytes));
  EXPECT_EQ(reader.read(kPage, bytes).error().errno_value, EINVAL);
  EXPECT_EQ(reader.read(UINT64_MAX - kPage + 1, bytes).error().errno_value, EINVAL);
}

// While a tree runs, memory may go, and another process may get the pid of one that has ended.
TEST_F(MemoryReaderTest, ReadsZerosWhereARunningProcessHasNoMemory) {
  const uint64_t start_time = identify(child_).value().start_time;
  const auto read = [&](const PageIndex& index) {
    auto reader = MemoryReader::create(index, MemoryReader::Tree::kRuns);
    EXPECT_TRUE(reader) << reader.error().message;
    std::vector<std::byte> bytes(index.memory_bytes, std::byte{0xff});
    const Status done = reader->read(0, bytes);
    EXPECT_TRUE(done) << done.error().message;
    std::vector<int> pages;
    for (size_t at = 0; at < bytes.size(); at += kPage)
      pages.push_back(static_cast<int>(bytes[at]));
    return pages;
  };
  const PageRange gone{kPage, 3 * kPage, kPage};  // nothing is mapped there
  const PageRange behind{range(5, 1, 3).start, range(5, 1, 3).end, 3 * kPage};
  EXPECT_EQ(read({4 * kPage, {{1, child_, {range(3, 1, 0), gone, behind}, start_time}}}),
            (std::vector<int>{4, 0, 0, 6}));
  EXPECT_EQ(read({2 * kPage, {{1, child_, {range(3, 2, 0)}, start_time + 1}}}),
            (std::vector<int>{0, 0}));
}

// If the reader returned zeros, they would count as the contents of the memory.
TEST_F(MemoryReaderTest, ReportsARunningProcessThatItMayNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: becomes another user";
  constexpr uid_t kNobody = 65534;
  const uint64_t start_time = identify(child_).value().start_time;
  // The reader reads from /proc/PID/mem what several processes share.
  const PageIndex index{
      kPage,
      {{1, child_, {range(3, 1, 0)}, start_time}, {2, child_, {range(3, 1, 0)}, start_time}}};
  std::vector<std::byte> bytes(kPage);
  auto reader = MemoryReader::create(index, MemoryReader::Tree::kRuns);
  ASSERT_TRUE(reader);
  ASSERT_EQ(seteuid(kNobody), 0);
  const Status read = reader->read(0, bytes);
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EACCES) << read.error().message;
}

TEST_F(MemoryReaderTest, ReportsThatThereIsNoDescriptorToReadARunningProcess) {
  const uint64_t start_time = identify(child_).value().start_time;
  const PageIndex index{kPage, {{1, child_, {range(3, 1, 0)}, start_time}}};
  std::vector<std::byte> bytes(kPage);
  auto reader = MemoryReader::create(index, MemoryReader::Tree::kRuns);
  ASSERT_TRUE(reader);
  const FewDescriptors none(0);
  const Status read = reader->read(0, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EMFILE) << read.error().message;
}

// Makes each read of a page fail, as broken memory does. Returns false before Linux 6.6.
bool poison(std::byte* page) {
  struct Request {  // uffdio_poison, newer than some headers
    uffdio_range range;
    uint64_t mode;
    int64_t updated;
  };
  constexpr uint64_t kPoisons = 1U << 14;
  constexpr unsigned long kPoison = _IOWR(UFFDIO, 0x08, Request);
  constexpr int kUserModeOnly = 1;
  const UniqueFd file(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly)));
  uffdio_api api{.api = UFFD_API, .features = kPoisons, .ioctls = 0};
  const uffdio_range range{reinterpret_cast<uint64_t>(page), kPage};
  uffdio_register tracked{.range = range, .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
  Request request{range, 0, 0};
  return file && madvise(page, kPage, MADV_DONTNEED) == 0 &&
         ioctl(file.get(), UFFDIO_API, &api) == 0 &&
         ioctl(file.get(), UFFDIO_REGISTER, &tracked) == 0 &&
         ioctl(file.get(), kPoison, &request) == 0;
}

TEST_F(MemoryReaderTest, ReportsAPageOfARunningProcessThatCannotBeRead) {
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  const bool is_poisoned = poison(memory_ + 2 * kPage);
  child_ = fork();
  if (child_ == 0) {
    for (;;) pause();
  }
  if (!is_poisoned) GTEST_SKIP() << "NOT TESTED: pages that cannot be read: need Linux 6.6";
  const uint64_t start_time = identify(child_).value().start_time;
  const PageIndex index{4 * kPage, {{1, child_, {range(0, 4, 0)}, start_time}}};
  std::vector<std::byte> bytes(4 * kPage);
  const Status read = MemoryReader::create(index, MemoryReader::Tree::kRuns)->read(0, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EIO);
  EXPECT_NE(read.error().message.find(fmt::format("{:#x}", range(2, 1, 0).start)),
            std::string::npos)
      << read.error().message;
}

// process_vm_readv(2) would give the first process copies of its own.
TEST_F(MemoryReaderTest, LeavesSharedWhatProcessesShare) {
  const pid_t other = fork();
  if (other == 0) {
    for (;;) pause();
  }
  const PageIndex index{4 * kPage, {{1, child_, {range(0, 4, 0)}}, {2, other, {range(0, 3, 0)}}}};
  EXPECT_EQ(read_all(index, 4), (std::vector<int>{1, 2, 3, 4}));
  auto tables = PageTables::open(child_);
  ASSERT_TRUE(tables) << tables.error().message;
  int shared = 0;
  const PageRange all = range(0, 3, 0);
  const Status listed =
      tables->list({all.start, all.end}, [&](uint64_t, PageEntry entry) -> Status {
        shared += entry.is_exclusive() ? 0 : 1;
        return {};
      });
  EXPECT_TRUE(listed);
  EXPECT_EQ(shared, 3);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace ppmr
