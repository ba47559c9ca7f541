#include "restart_loader/criu/hidden_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "processes/memory/lazy_mapping.h"

namespace ppmr {
namespace {

constexpr size_t kPageBytes = 4096;

UniqueFd file_of(const std::string& text) {
  UniqueFd file(memfd_create("maps", MFD_CLOEXEC));
  EXPECT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

bool is_lazy(std::string_view line) {
  uint64_t start = 0;
  uint64_t end = 0;
  return is_lazy_mapping({line.data(), line.size()}, start, end);
}

TEST(LazyMapping, IsPrivateMemoryOfNoFile) {
  EXPECT_TRUE(is_lazy("7f00-7f01 rw-p 00000000 00:00 0 "));
  EXPECT_TRUE(is_lazy("7f00-7f01 ---p 00000000 00:00 0"));
  EXPECT_TRUE(is_lazy("55d0-55d1 rw-p 00000000 00:00 0                          [heap]"));
  EXPECT_TRUE(is_lazy("7ff0-7ff1 rw-p 00000000 00:00 0                          [stack]"));
  EXPECT_TRUE(is_lazy("7ff0-7ff1 rw-p 00000000 00:00 0    [anon: a name]"));
  EXPECT_FALSE(is_lazy("7f00-7f01 rw-s 00000000 00:01 1024   /dev/zero (deleted)"));
  EXPECT_FALSE(is_lazy("7f00-7f01 rw-p 00000000 00:05 9   /dev/zero"));
  EXPECT_FALSE(is_lazy("7f00-7f01 rw-s 00000000 00:00 0    [anon_shmem:name]"));
  EXPECT_FALSE(is_lazy("7f00-7f01 r--p 00000000 00:00 0    [vvar_vclock]"));
  EXPECT_FALSE(is_lazy("7f00-7f01 r-xp 00000000 00:00 0    [uprobes]"));
  EXPECT_FALSE(is_lazy("7f00-7f01 r-xp 00000000 fe:00 0    /a file with inode 0"));
  for (const char* damaged : {"", "7f00", "7f00-", "-7f00 rw-p 0 00:00 0", "7f01-7f00 rw-p 0 0 0",
                              "Size:                  4 kB", "7f0g-7fff rw-p 0 00:00 0",
                              "7f00-7f01 rw 0 00:00 0", "7f00-7f01"}) {
    EXPECT_FALSE(is_lazy(damaged)) << damaged;
  }
}

TEST(HiddenMemory, HidesOnlyMemoryOfAProcessThatTheDumpTracesAndThatLocksNothing) {
  const std::string status =
      "Name:\tx\nTracerPid:\t17\nUid:\t0\t0\nVmPeak:\t 9 kB\nVmLck:\t%s kB\n";
  const auto with = [&](const char* locked) {
    std::string text = status;
    return text.replace(text.find("%s"), 2, locked);
  };
  EXPECT_TRUE(may_hide(with("       0").data(), with("       0").size(), 17));
  EXPECT_FALSE(may_hide(with("      40").data(), with("      40").size(), 17));
  EXPECT_FALSE(may_hide(with("       0").data(), with("       0").size(), 1));
  EXPECT_FALSE(may_hide(with("       0").data(), with("       0").size(), 0));
  const std::string forged = "Name:\tVmLck:\t0\nTracerPid:\t17\n";
  EXPECT_FALSE(may_hide(forged.data(), forged.size(), 17));
  EXPECT_FALSE(may_hide("", 0, 17));
}

// Memory of this process in which every third page is not in use. A test hides some of the pages.
class HiddenPages : public testing::Test {
 protected:
  HiddenPages() : pagemap_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {
    memory_ = static_cast<char*>(mmap(nullptr, kPages * kPageBytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(memory_, kPages * kPageBytes, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < kPages; ++page) {
      if (page % 3 != 2) memory_[page * kPageBytes] = 1;
    }
  }
  ~HiddenPages() override { munmap(memory_, kPages * kPageBytes); }

  uint64_t at(size_t page) const { return reinterpret_cast<uint64_t>(memory_) + page * kPageBytes; }
  // Hides the pages of `parts`, pairs of a first page and the one behind the last.
  void hide(const std::vector<std::pair<size_t, size_t>>& parts) {
    std::string maps;
    for (const auto& [first, last] : parts) {
      char line[128];
      snprintf(line, sizeof(line), "%llx-%llx rw-p 00000000 00:00 0 \n",
               static_cast<unsigned long long>(at(first)),
               static_cast<unsigned long long>(at(last)));
      maps += line;
      for (size_t page = first; page < last; ++page) hidden_[page] = true;
    }
    ASSERT_TRUE(memory_of_.read(file_of(maps).get()));
  }
  bool is_visible(size_t page) const { return page % 3 != 2 && !hidden_[page]; }

  static constexpr size_t kPages = 64;
  const UniqueFd pagemap_;
  char* memory_ = nullptr;
  bool hidden_[kPages] = {};
  HiddenMemory memory_of_;
};

TEST_F(HiddenPages, AreInNoScan) {
  hide({{0, 4}, {7, 8}, {8, 9}, {20, 40}, {60, 64}});
  for (const size_t room : {1, 2, 3, 64}) {
    for (size_t first = 0; first < kPages; first += 5) {
      std::vector<bool> seen(kPages);
      PageScan scan{};
      scan.size = sizeof(scan);
      scan.start = at(first);
      scan.end = at(kPages);
      scan.category_anyof_mask = scan.return_mask = kPageIsPresent | kPageIsSwapped;
      while (scan.start < scan.end) {
        std::vector<ScannedPages> regions(room);
        scan.regions = reinterpret_cast<uint64_t>(regions.data());
        scan.regions_count = regions.size();
        const int count = memory_of_.scan(pagemap_.get(), scan);
        if (count < 0 && errno == ENOTTY) GTEST_SKIP() << "this kernel has no such scan";
        ASSERT_GE(count, 0) << strerror(errno);
        ASSERT_LE(static_cast<size_t>(count), room);
        for (int i = 0; i < count; ++i) {
          for (uint64_t address = regions[i].start; address < regions[i].end;
               address += kPageBytes) {
            ASSERT_GE(address, at(first));
            ASSERT_LT(address, at(kPages));
            seen[(address - at(0)) / kPageBytes] = true;
          }
        }
        ASSERT_GT(scan.walk_end, scan.start);
        scan.start = scan.walk_end;
      }
      for (size_t page = first; page < kPages; ++page) EXPECT_EQ(seen[page], is_visible(page));
    }
  }
}

TEST_F(HiddenPages, AreZeroInTheListOfAllPages) {
  hide({{0, 4}, {7, 8}, {20, 40}, {60, 64}});
  for (size_t first = 0; first < kPages; first += 3) {
    for (size_t last = first; last <= kPages; last += 7) {
      std::vector<uint64_t> entries(last - first, 1);
      const size_t bytes = entries.size() * sizeof(entries[0]);
      const auto position = static_cast<off_t>(at(first) / kPageBytes * sizeof(entries[0]));
      ASSERT_EQ(memory_of_.pread(pagemap_.get(), entries.data(), bytes, position),
                static_cast<ssize_t>(bytes));
      for (size_t page = first; page < last; ++page) {
        EXPECT_EQ((entries[page - first] >> 62) != 0, is_visible(page)) << page;
      }
    }
  }
}

TEST_F(HiddenPages, AreTheSameAgainOnceForgotten) {
  hide({{0, kPages}});
  memory_of_.forget();
  uint64_t entry = 0;
  const auto position = static_cast<off_t>(at(0) / kPageBytes * sizeof(entry));
  ASSERT_EQ(memory_of_.pread(pagemap_.get(), &entry, sizeof(entry), position), 8);
  EXPECT_NE(entry >> 62, 0u);
}

TEST(HiddenMemory, ReadsListsOfAnyLengthAndJoinsNeighbours) {
  std::string maps;
  for (uint64_t i = 0; i < 20'000; ++i) {
    char line[128];
    const auto start = static_cast<unsigned long long>(0x10000 + i * 0x4000);
    snprintf(line, sizeof(line), "%llx-%llx rw-p 00000000 00:00 0 \n", start, start + 0x1000);
    maps += line;
    snprintf(line, sizeof(line), "%llx-%llx rw-p 00000000 00:00 0    [anon:second]\n",
             start + 0x1000, start + 0x2000);
    maps += line;
    maps += "7f00-7f01 r-xp 00000000 fe:00 77 /" + std::string(i % 4000, 'x') + "\n";
  }
  HiddenMemory memory;
  ASSERT_TRUE(memory.read(file_of(maps).get()));
  EXPECT_EQ(memory.count(), 20'000u);
}

TEST(HiddenMemory, HidesNothingOfAListThatItCannotRead) {
  HiddenMemory memory;
  const std::string good = "10000-20000 rw-p 00000000 00:00 0 \n";
  EXPECT_FALSE(memory.read(file_of(good + "30000-40000 rw-p").get()));  // cut off
  EXPECT_EQ(memory.count(), 0u);
  EXPECT_FALSE(memory.read(file_of(good + std::string(100'000, 'x')).get()));
  EXPECT_EQ(memory.count(), 0u);
  EXPECT_FALSE(memory.read(-1));
  EXPECT_TRUE(memory.read(file_of("").get()));
  EXPECT_EQ(memory.count(), 0u);
}

}  // namespace
}  // namespace ppmr
