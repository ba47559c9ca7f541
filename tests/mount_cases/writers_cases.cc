// Several writers at once.
#include <unistd.h>

#include <thread>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

constexpr int kWriters = 8;
constexpr size_t kShare = 5 * kMiB + 321;

class EightWriters : public MountCase {
 protected:
  // Runs `body(number)` in eight threads. Every call must return true.
  static void in_threads(const std::function<bool(int)>& body) {
    std::vector<std::thread> threads;
    std::vector<int> good(kWriters, 0);
    for (int i = 0; i < kWriters; ++i)
      threads.emplace_back([&, i] { good[static_cast<size_t>(i)] = body(i) ? 1 : 0; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(good, std::vector<int>(kWriters, 1));
  }
  static void in_processes(const std::function<bool(int)>& body) {
    std::vector<Child> children;
    for (int i = 0; i < kWriters; ++i) children.emplace_back([&, i] { return body(i) ? 0 : 1; });
    for (Child& child : children) EXPECT_EQ(child.wait(), 0);
  }

  bool write_own_file(int number) {
    return static_cast<bool>(write_file(at_writer("file-" + std::to_string(number)),
                                        pattern(kShare, static_cast<uint64_t>(number)), 100'003));
  }
  void expect_own_files() {
    for (int i = 0; i < kWriters; ++i) {
      EXPECT_TRUE(reads_as(at_reader("file-" + std::to_string(i)),
                           pattern(kShare, static_cast<uint64_t>(i))));
    }
  }

  // Each writer writes every eighth block of 64 KiB + 1, so all writers share chunks.
  bool write_own_blocks(const Fd& fd, int number) {
    const std::string all = pattern(kBlocks * kBlock, 5);
    for (size_t block = static_cast<size_t>(number); block < kBlocks; block += kWriters) {
      if (!pwrite_whole(fd, std::string_view(all).substr(block * kBlock, kBlock), block * kBlock))
        return false;
    }
    return true;
  }
  void expect_all_blocks() {
    EXPECT_TRUE(reads_as(at_reader("shared"), pattern(kBlocks * kBlock, 5)));
  }

  static constexpr size_t kBlock = 64 * kKiB + 1;
  static constexpr size_t kBlocks = 20 * kWriters;
};

TEST_F(EightWriters, InThreadsWriteEightFiles) {
  in_threads([&](int number) { return write_own_file(number); });
  expect_own_files();
}

TEST_F(EightWriters, InProcessesWriteEightFiles) {
  in_processes([&](int number) { return write_own_file(number); });
  expect_own_files();
}

TEST_F(EightWriters, InThreadsWriteRangesOfOneFileThroughOneDescriptor) {
  Fd fd = open_file(at_writer("shared"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  in_threads([&](int number) { return write_own_blocks(fd, number); });
  ASSERT_EQ(fd.close(), 0);
  expect_all_blocks();
}

TEST_F(EightWriters, InProcessesWriteRangesOfOneFileThroughSeparateDescriptors) {
  ASSERT_TRUE(write_file(at_writer("shared"), ""));
  in_processes([&](int number) {
    Fd fd = open_file(at_writer("shared"), O_WRONLY);
    return fd.ok() && write_own_blocks(fd, number) && fd.close() == 0;
  });
  expect_all_blocks();
}

TEST_F(EightWriters, AppendWholeRecordsToOneFile) {
  constexpr int kRecords = 200;
  ASSERT_TRUE(write_file(at_writer("log"), ""));
  in_processes([&](int number) {
    Fd fd = open_file(at_writer("log"), O_WRONLY | O_APPEND);
    for (int i = 0; i < kRecords; ++i) {
      if (!write_whole(fd, std::string(99, static_cast<char>('a' + number)) + "\n")) return false;
    }
    return fd.close() == 0;
  });
  Fd in = open_file(at_reader("log"), O_RDONLY);
  ASSERT_TRUE(in.ok());
  std::string record(100, '\0');
  std::vector<int> seen(kWriters, 0);
  for (int i = 0; i < kWriters * kRecords; ++i) {
    ASSERT_EQ(::read(in.get(), record.data(), record.size()), 100) << "record " << i;
    ASSERT_EQ(record, std::string(99, record[0]) + "\n") << "record " << i << " is torn";
    ++seen.at(static_cast<size_t>(record[0] - 'a'));
  }
  EXPECT_EQ(seen, std::vector<int>(kWriters, kRecords));
  EXPECT_EQ(::read(in.get(), record.data(), record.size()), 0);
}

TEST_F(EightWriters, CreateAndRemoveNamesConcurrently) {
  in_threads([&](int number) {
    const std::string own = "d" + std::to_string(number);
    if (::mkdir(at_writer(own).c_str(), 0755) != 0) return false;
    for (int i = 0; i < 60; ++i) {
      const std::string name = own + "/f" + std::to_string(i);
      if (!write_file(at_writer(name), name)) return false;
      if (i % 3 == 0 && ::rename(at_writer(name).c_str(), at_writer(name + ".moved").c_str()) != 0)
        return false;
      if (i % 3 == 1 && ::unlink(at_writer(name).c_str()) != 0) return false;
    }
    return true;
  });
  std::vector<std::string> expected;
  for (int i = 0; i < 60; ++i) {
    if (i % 3 == 0) expected.push_back("f" + std::to_string(i) + ".moved");
    if (i % 3 == 2) expected.push_back("f" + std::to_string(i));
  }
  for (int number = 0; number < kWriters; ++number)
    EXPECT_TRUE(soon_lists("d" + std::to_string(number), expected));
}

// Reads at the source during writes must return the written bytes.
TEST_F(EightWriters, ReadBackTheirOwnBytesBetweenWrites) {
  in_threads([&](int number) {
    const std::string bytes = pattern(2 * kMiB, static_cast<uint64_t>(number));
    Fd fd = open_file(at_writer("file-" + std::to_string(number)), O_RDWR | O_CREAT);
    std::string got(100'000, '\0');
    for (size_t at = 0; at + got.size() <= bytes.size(); at += got.size()) {
      if (!pwrite_whole(fd, std::string_view(bytes).substr(at, got.size()), at)) return false;
      const size_t from = at / 2;
      if (::pread(fd.get(), got.data(), got.size(), static_cast<off_t>(from)) !=
          static_cast<ssize_t>(got.size()))
        return false;
      if (got != bytes.substr(from, got.size())) return false;
    }
    return fd.close() == 0;
  });
}

}  // namespace
}  // namespace ppmr::mount_cases
