// Sends the shared memory of a child in rounds, through the format of the wire, and builds it
// again.
#include "processes/files/segment_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>

#include "base/mapped_file.h"
#include "processes/files/page_digest.h"
#include "processes/files/tmpfs_builder.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

constexpr size_t kPages = 1024;
constexpr size_t kBytes = kPages * kFilePageBytes;

TEST(NameOfSegment, OnlyAnonymousMemoryAndMemfdsHaveAName) {
  EXPECT_EQ(name_of_segment("/dev/zero (deleted)"), "/dev/zero");
  EXPECT_EQ(name_of_segment("/memfd:heap (deleted)"), "heap");
  EXPECT_EQ(name_of_segment("/memfd: (deleted)"), "");
  for (const char* other : {"/dev/zero", "/SYSV00000000 (deleted)", "/dev/shm/x (deleted)",
                            "/memfd:heap", " (deleted)", ""}) {
    EXPECT_EQ(name_of_segment(other), std::nullopt) << other;
  }
}

class SegmentRoundsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: opens mappings of another process";
    shared_ = static_cast<char*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(shared_, MAP_FAILED);
    fill(shared_, kBytes / 2);  // the other half is a hole
    process_ = std::make_unique<TestProcess>();
    without_ = std::make_unique<TestProcess>([this] { munmap(shared_, kBytes); });
  }
  void TearDown() override {
    if (shared_ != nullptr) munmap(shared_, kBytes);
  }

  void fill(char* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      const uint64_t word = random_();
      std::memcpy(from + at, &word, sizeof(word));
    }
  }
  Status apply(const FileRecord& record) {
    std::string bytes;
    append_file_record(record, bytes);
    FileRecordReader reader([&, at = size_t{0}](std::span<char> into) mutable -> Result<size_t> {
      const size_t n = std::min(into.size(), bytes.size() - at);
      std::memcpy(into.data(), bytes.data() + at, n);
      at += n;
      return n;
    });
    const auto read = reader.next();
    return read ? builder_.apply(*read) : failure(read.error());
  }
  // Sends a part, and returns the bytes of content that it has.
  uint64_t send(bool is_last = false) {
    EXPECT_TRUE(apply(file_record::Part{parts_++}));
    const auto sink = [this](const FileRecord& record) { return apply(record); };
    const auto bytes =
        is_last ? rounds_.send_last(sink) : rounds_.send_round(process_->pid(), sink);
    EXPECT_TRUE(bytes) << bytes.error().message;
    EXPECT_TRUE(apply(file_record::End{false}));
    return bytes.value_or(0);
  }
  // Returns what was built of the only memory.
  std::string built() {
    auto all = builder_.take_segments();
    EXPECT_EQ(all.size(), 1U);
    if (all.empty()) return "";
    const auto mapped = MappedFile::map(all.front().memfd);
    const auto bytes = mapped->bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string original() const { return {shared_, kBytes}; }

  char* shared_ = nullptr;
  std::mt19937_64 random_{7};
  std::unique_ptr<TestProcess> process_;
  std::unique_ptr<TestProcess> without_;  // a process without that memory
  SegmentRounds rounds_;
  TmpfsBuilder builder_{"/nowhere"};
  uint64_t parts_ = 0;
};

TEST_F(SegmentRoundsTest, ARoundSendsDataAndLeavesHoles) {
  EXPECT_EQ(send(), kBytes / 2);
  EXPECT_EQ(send(), 0U);
  EXPECT_EQ(send(true), 0U);
  EXPECT_EQ(built(), original());
}

TEST_F(SegmentRoundsTest, WritesOfAnyProcessAreSentAgain) {
  send();
  shared_[5 * kFilePageBytes] ^= 1;  // this process is not in the tree
  EXPECT_EQ(send(), kFilePageBytes);
  // A child that has ended has left its writes.
  const pid_t child = fork();
  if (child == 0) {
    shared_[kBytes - 1] = 'x';  // in the hole
    shared_[0] ^= 1;
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(send(true), 2 * kFilePageBytes);
  EXPECT_EQ(built(), original());
}

TEST_F(SegmentRoundsTest, WhatIsDiscardedBecomesAHole) {
  send();
  ASSERT_EQ(madvise(shared_, kBytes / 4, MADV_REMOVE), 0);
  EXPECT_EQ(send(true), 0U);
  EXPECT_EQ(built(), original());
}

TEST_F(SegmentRoundsTest, SegmentThatIsGoneIsDropped) {
  send();
  EXPECT_FALSE(rounds_.list_of_inodes().empty());
  process_ = std::move(without_);
  send();
  EXPECT_TRUE(rounds_.is_empty());
  EXPECT_EQ(rounds_.list_of_inodes(), "");
  EXPECT_TRUE(builder_.take_segments().empty());
}

TEST(SegmentRounds, OpenMemfdWithoutAMappingIsSentWithItsGrowth) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: opens files of another process";
  const UniqueFd memfd(memfd_create("a name", MFD_CLOEXEC));
  const std::string bytes(kBytes, 'b');
  ASSERT_EQ(write(memfd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const TestProcess process;
  SegmentRounds rounds;
  std::vector<FileRecord> records;
  const auto sink = [&](const FileRecord& record) -> Status {
    records.push_back(record);
    return {};
  };
  ASSERT_EQ(rounds.send_round(process.pid(), sink), kBytes);
  const auto* const segment = std::get_if<file_record::Segment>(&records.front());
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(segment->name, "a name");
  ASSERT_EQ(write(memfd.get(), "more", 4), 4);
  records.clear();
  EXPECT_EQ(rounds.send_last(sink), 4U);  // there is no mapping of this size
  const auto* const size = std::get_if<file_record::Size>(&records.front());
  ASSERT_NE(size, nullptr);
  EXPECT_EQ(size->bytes, kBytes + 4);
}

TEST(SegmentBuilder, RefusesBytesOfASegmentThatHasNotBegun) {
  SegmentBuilder builder;
  const file_record::Data data{kSharedMemory, 3, 0, "x"};
  EXPECT_EQ(builder.on(data).error().errno_value, EPROTO);
  EXPECT_TRUE(builder.on(file_record::Segment{3, 17, "name"}));
  EXPECT_TRUE(builder.on(data));
  EXPECT_EQ(builder.on(file_record::Segment{3, 18, "again"}).error().errno_value, EPROTO);
  EXPECT_EQ(builder.on(file_record::Segment{4, 17, "again"}).error().errno_value, EPROTO);
  EXPECT_TRUE(builder.on(file_record::Drop{kSharedMemory, 3}));
  EXPECT_EQ(builder.on(data).error().errno_value, EPROTO);
}

}  // namespace
}  // namespace ppmr
