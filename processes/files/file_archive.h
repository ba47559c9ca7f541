// What a live move sends of files in memory and of shared memory: a sequence of records, cut into
// parts. A part is a checkpoint of its own.
//
//   rounds   kTmpfs   a tmpfs; comes before all other records of it
//            kSize    the size of a file
//            kData    bytes of a file; kHole: a range that is a hole
//            kDrop    a file that is gone
//            kSegment a shared memory; comes before all other records of it. Content as of a file
//   last     kTree    the root directory, and then all names below it, depth first:
//            kEntry   a file of any kind, by its name; for a directory its entries follow
//            kLink    a further name of a file
//            kLeave   the end of a directory, also of the root
//   parts    kPart    the start of a part; kEnd: its end, and whether it is the last one
//
// A file has a number. The source sends its content under this number while the tree runs, and its
// name when the tree is frozen. So the rounds need not follow renames. A record is its type (1
// byte), the length of its body (4 bytes), and the body. Numbers are little-endian.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace ppmr {

constexpr size_t kFileTmpfsMax = 64;
// Records of shared memory have this number in place of the number of a tmpfs.
constexpr uint32_t kSharedMemory = kFileTmpfsMax;
constexpr size_t kSegmentsMax = 64;
constexpr size_t kFileDataMaxBytes = size_t{1} << 20;
constexpr size_t kFileDepthMax = 512;

// Returns the name of the checkpoint that is part `number` of the files in memory of a tree.
std::string file_part_name(const std::string& checkpoint, uint64_t number);

struct FileAttributes {
  uint32_t mode = 0;  // type and permissions, as in stat(2)
  uint32_t uid = 0;
  uint32_t gid = 0;
  int64_t access_ns = 0;
  int64_t change_ns = 0;  // last change of the content
  std::vector<std::pair<std::string, std::string>> xattrs;
  bool operator==(const FileAttributes&) const = default;
};

namespace file_record {

struct Part {
  uint64_t number = 0;
  bool operator==(const Part&) const = default;
};
struct Tmpfs {
  uint32_t tmpfs = 0;
  std::string options;
  bool operator==(const Tmpfs&) const = default;
};
struct Size {
  uint32_t tmpfs = 0;
  uint64_t file = 0;
  uint64_t bytes = 0;
  bool operator==(const Size&) const = default;
};
struct Data {
  uint32_t tmpfs = 0;
  uint64_t file = 0;
  uint64_t offset = 0;
  std::string bytes;
  bool operator==(const Data&) const = default;
};
struct Hole {
  uint32_t tmpfs = 0;
  uint64_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Hole&) const = default;
};
struct Drop {
  uint32_t tmpfs = 0;
  uint64_t file = 0;
  bool operator==(const Drop&) const = default;
};
struct Tree {
  uint32_t tmpfs = 0;
  FileAttributes root;
  bool operator==(const Tree&) const = default;
};
struct Entry {
  std::string name;
  uint64_t file = 0;
  uint64_t size_bytes = 0;  // only for a regular file
  uint64_t device = 0;      // only for a device file
  std::string target;       // only for a symbolic link
  FileAttributes attributes;
  bool operator==(const Entry&) const = default;
};
struct Link {
  std::string name;
  uint64_t file = 0;
  bool operator==(const Link&) const = default;
};
struct Leave {
  bool operator==(const Leave&) const = default;
};
struct End {
  bool is_last = false;
  bool operator==(const End&) const = default;
};
struct Segment {
  uint64_t file = 0;
  uint64_t inode = 0;  // inode at the source; CRIU's images name the memory by it
  std::string name;    // the name for memfd_create(2)
  bool operator==(const Segment&) const = default;
};

}  // namespace file_record

using FileRecord =
    std::variant<file_record::Part, file_record::Tmpfs, file_record::Size, file_record::Data,
                 file_record::Hole, file_record::Drop, file_record::Tree, file_record::Entry,
                 file_record::Link, file_record::Leave, file_record::End, file_record::Segment>;

// Appends a record to `bytes`.
void append_file_record(const FileRecord& record, std::string& bytes);

// Reads records from unchecked bytes. A returned record is within the limits: each name is one
// component of a path, each number of a tmpfs is below kFileTmpfsMax, or kSharedMemory where a file
// has content, and no offset overflows. Does not check the order of the records. Threads: one.
class FileRecordReader {
 public:
  // Reads at most as many bytes as the span has, and returns how many; 0: the end. next() returns
  // the errors of the source.
  using Source = std::function<Result<size_t>(std::span<char>)>;
  explicit FileRecordReader(Source source) : source_(std::move(source)) {}

  // Errors: EPROTO for malformed bytes and for an end within a record; those of the source.
  Result<FileRecord> next();

 private:
  Status fill(size_t bytes);

  Source source_;
  std::string buffer_;
  size_t used_ = 0;  // used bytes of the buffer
};

}  // namespace ppmr
