// A program changes the size of a file between two system calls of a pass. Each test applies the
// sent records to a second file, and compares the two files at the end.
#include "processes/files/sent_content.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "processes/files/built_content.h"
#include "processes/files/page_digest.h"

namespace ppmr {
namespace {

constexpr uint64_t kPages = 8;
constexpr uint64_t kBytes = kPages * kFilePageBytes;
constexpr uint64_t kPart = 100;  // bytes of a page

class SentContentTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(source_ && target_);
    fill(0, kBytes, 'x');
  }

  void fill(uint64_t from, uint64_t end, char with) {
    const std::string bytes(end - from, with);
    ASSERT_EQ(pwrite(source_.get(), bytes.data(), bytes.size(), static_cast<off_t>(from)),
              static_cast<ssize_t>(bytes.size()));
  }
  void resize(uint64_t bytes) { ASSERT_EQ(ftruncate(source_.get(), static_cast<off_t>(bytes)), 0); }
  void punch(uint64_t from, uint64_t bytes) {
    ASSERT_EQ(fallocate(source_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(from), static_cast<off_t>(bytes)),
              0);
  }

  Status apply(const FileRecord& record) {
    at_record_(record);
    if (const auto* data = std::get_if<file_record::Data>(&record)) {
      return apply_content(*data, target_.get());
    }
    if (const auto* hole = std::get_if<file_record::Hole>(&record)) {
      return apply_content(*hole, target_.get());
    }
    return apply_content(std::get<file_record::Size>(record), target_.get());
  }
  // Sends the file. `size_bytes`: its size when the pass began.
  void send(uint64_t size_bytes = kBytes) {
    const auto sink = [this](const FileRecord& record) { return apply(record); };
    const auto plain = reader_of(source_.get(), std::span(buffer_));
    const auto read = [&](uint64_t offset, uint64_t bytes_max) {
      before_read_();
      return plain(offset, bytes_max);
    };
    ASSERT_TRUE(content_.send_size(size_bytes, sink));
    const auto sent = content_.send_changed(source_.get(), read, sink);
    ASSERT_TRUE(sent) << sent.error().message;
  }
  // Sends the file while nothing changes it.
  void send_last(uint64_t size_bytes = kBytes) {
    before_read_ = [] {};
    at_record_ = [](const FileRecord&) {};
    send(size_bytes);
    EXPECT_TRUE(read_all(source_) == read_all(target_)) << "the contents differ";
  }
  static std::string read_all(const UniqueFd& file) {
    std::string bytes(2 * kBytes, '\0');
    const ssize_t n = pread(file.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return bytes;
  }

  const UniqueFd source_{memfd_create("source", MFD_CLOEXEC)};
  const UniqueFd target_{memfd_create("target", MFD_CLOEXEC)};
  std::string buffer_ = std::string(kFileDataMaxBytes, '\0');
  SentContent content_{0, 1};
  // What the program does before a read, and before the target applies a record. A pass sends a
  // hole after it has found the start of the next data, and before it looks for the end of these
  // data.
  std::function<void()> before_read_ = [] {};
  std::function<void(const FileRecord&)> at_record_ = [](const FileRecord&) {};
};

TEST_F(SentContentTest, SendsAFileThatIsShortenedBeforeTheReadAndThenExtended) {
  send();
  before_read_ = [this] { resize(kFilePageBytes + kPart); };
  send();
  resize(kBytes);
  send_last();
}

TEST_F(SentContentTest, SendsAFileThatIsShortenedWithinItsLastPageAndThenExtended) {
  resize(kBytes - kPart);
  send(kBytes - kPart);
  // The next pass begins with a shorter file. Before the read, the file loses more pages.
  resize(kBytes - 2 * kPart);
  before_read_ = [this] { resize(kFilePageBytes); };
  send(kBytes - 2 * kPart);
  fill(kFilePageBytes, kBytes - kPart, 'x');
  send_last(kBytes - kPart);
}

TEST_F(SentContentTest, SendsAFileThatIsShortenedBeforeTheEndOfItsDataIsFound) {
  send();
  constexpr uint64_t kEnd = 2 * kFilePageBytes + kPart;
  punch(0, kFilePageBytes);
  at_record_ = [this](const FileRecord& record) {
    const auto* const hole = std::get_if<file_record::Hole>(&record);
    if (hole != nullptr && hole->offset == 0) return resize(kEnd);
    fill(kEnd, kBytes, 'x');
    fill(3 * kFilePageBytes, 3 * kFilePageBytes + kPart, 'y');
  };
  send();
  fill(kEnd, kBytes, 'x');
  send_last();
}

TEST_F(SentContentTest, SendsAFileThatIsEmptiedBeforeTheEndOfItsDataIsFound) {
  send();
  punch(0, kFilePageBytes);
  at_record_ = [this](const FileRecord&) { resize(0); };
  send();
  resize(kBytes);
  fill(kPart, kFilePageBytes, 'y');
  send_last();
}

TEST_F(SentContentTest, SendsAHoleInPlaceOfAPageThatWasShortened) {
  resize(kBytes - kPart);
  send(kBytes - kPart);
  resize(kBytes - 2 * kPart);
  punch(kBytes - kFilePageBytes, kFilePageBytes);
  resize(kBytes);
  send(kBytes - 2 * kPart);
  send_last();
}

}  // namespace
}  // namespace ppmr
