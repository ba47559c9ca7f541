#include "processes/files/file_archive.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

namespace ppmr {
namespace {

using namespace file_record;

FileAttributes attributes(uint32_t mode) {
  return {.mode = mode,
          .uid = 7,
          .gid = 8,
          .access_ns = -1,
          .change_ns = 1'700'000'000'123'456'789,
          .xattrs = {{"user.a", std::string("\0b", 2)}}};
}

Entry file(const std::string& name) {
  return {.name = name,
          .file = 5,
          .size_bytes = 9,
          .device = 0,
          .target = "",
          .attributes = attributes(S_IFREG | 0640)};
}

std::string bytes_of(const FileRecord& record) {
  std::string bytes;
  append_file_record(record, bytes);
  return bytes;
}

// Reads from `bytes`, at most `step` at once.
FileRecordReader reader_of(std::string bytes, size_t step = SIZE_MAX) {
  return FileRecordReader(
      [bytes = std::move(bytes), step, at = size_t{0}](std::span<char> into) mutable {
        const size_t n = std::min({into.size(), bytes.size() - at, step});
        std::memcpy(into.data(), bytes.data() + at, n);
        at += n;
        return Result<size_t>(n);
      });
}

Result<FileRecord> parsed(const std::string& bytes) { return reader_of(bytes).next(); }

void expect_refused(const FileRecord& record) {
  const auto read = parsed(bytes_of(record));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EPROTO);
}

TEST(FileArchive, RecordsAreReadAsTheyWereWritten) {
  Entry link = file("a name");
  link.attributes.mode = S_IFLNK | 0777;
  link.target = "/nowhere";
  const std::vector<FileRecord> records = {Part{3},
                                           Tmpfs{1, "rw,size=4096k"},
                                           Size{1, 5, 1 << 20},
                                           Data{1, 5, 4096, std::string(kFileDataMaxBytes, 'x')},
                                           Hole{1, 5, 0, 4096},
                                           Drop{1, 6},
                                           Tree{1, attributes(S_IFDIR | 01777)},
                                           file("file"),
                                           link,
                                           Link{"other", 5},
                                           Leave{},
                                           End{true}};
  std::string bytes;
  for (const FileRecord& record : records) append_file_record(record, bytes);
  for (const size_t step : {size_t{1000}, SIZE_MAX}) {
    auto reader = reader_of(bytes, step);
    for (const FileRecord& record : records) {
      const auto read = reader.next();
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(*read, record);
    }
    EXPECT_FALSE(reader.next()) << "it reads on after the end";
  }
}

TEST(FileArchive, NamesThatLeadElsewhereAreRefused) {
  for (const std::string name : {"", ".", "..", "a/b", "/", "../a"}) {
    expect_refused(file(name));
    expect_refused(Link{name, 5});
  }
  expect_refused(file(std::string("a\0b", 3)));
  expect_refused(file(std::string(256, 'a')));
  EXPECT_TRUE(parsed(bytes_of(file(std::string(255, 'a')))));
}

TEST(FileArchive, ValuesOutOfTheirLimitsAreRefused) {
  expect_refused(Tmpfs{kFileTmpfsMax, ""});
  expect_refused(Data{0, 5, UINT64_MAX, "x"});
  expect_refused(Size{0, 5, UINT64_MAX});
  expect_refused(Hole{0, 5, 0, 0});
  expect_refused(Tree{0, attributes(S_IFREG)});
  Entry strange = file("a");
  strange.attributes.mode = 0644;  // no type
  expect_refused(strange);
  strange.attributes.mode = S_IFREG | 0200000;
  expect_refused(strange);
  strange = file("a");
  strange.target = "x";  // a regular file has no target
  expect_refused(strange);
  strange.attributes.mode = S_IFLNK | 0777;
  strange.target = std::string("a\0b", 3);
  expect_refused(strange);
}

TEST(FileArchive, EveryTruncationAndSurplusIsRefused) {
  const std::string whole = bytes_of(file("name"));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parsed(whole.substr(0, size))) << size;
  }
  std::string surplus = whole + "x";
  ++surplus[1];  // the length of the body
  EXPECT_FALSE(parsed(surplus));
}

TEST(FileArchive, UnknownTypesAndLongRecordsAreRefused) {
  std::string bytes = bytes_of(Leave{});
  bytes[0] = 99;
  EXPECT_FALSE(parsed(bytes));
  bytes = bytes_of(Leave{});
  bytes[4] = 0x7f;
  const auto read = parsed(bytes);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("too long"), std::string::npos);
}

}  // namespace
}  // namespace ppmr
