#include "processes/files/file_archive.h"

#include <linux/limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

namespace ppmr {
namespace {

using namespace file_record;

constexpr size_t kHeaderBytes = 5;
constexpr size_t kBodyMaxBytes = (size_t{1} << 20) + 64;
constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kOptionsMaxBytes = 4096;
constexpr size_t kXattrsMax = 256;
constexpr size_t kSegmentNameMaxBytes = 249;  // the limit of memfd_create(2)
// Files end below this offset, so no sum of offset and length overflows.
constexpr uint64_t kFileEndMax = uint64_t{1} << 62;

class Body {
 public:
  explicit Body(std::string& bytes) : bytes_(bytes) {}
  void number(auto value) {
    for (size_t i = 0; i < sizeof(value); ++i) {
      bytes_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
    }
  }
  void text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes_ += value;
  }
  void attributes(const FileAttributes& value) {
    number(value.mode), number(value.uid), number(value.gid);
    number(value.access_ns), number(value.change_ns);
    number(static_cast<uint32_t>(value.xattrs.size()));
    for (const auto& [name, content] : value.xattrs) text(name), text(content);
  }

  void fields(const Part& part) { number(part.number); }
  void fields(const Tmpfs& tmpfs) { number(tmpfs.tmpfs), text(tmpfs.options); }
  void fields(const Size& size) { number(size.tmpfs), number(size.file), number(size.bytes); }
  void fields(const Data& data) {
    number(data.tmpfs), number(data.file), number(data.offset), text(data.bytes);
  }
  void fields(const Hole& hole) {
    number(hole.tmpfs), number(hole.file), number(hole.offset), number(hole.bytes);
  }
  void fields(const Drop& drop) { number(drop.tmpfs), number(drop.file); }
  void fields(const Tree& tree) { number(tree.tmpfs), attributes(tree.root); }
  void fields(const Entry& entry) {
    text(entry.name), number(entry.file), number(entry.size_bytes), number(entry.device);
    text(entry.target), attributes(entry.attributes);
  }
  void fields(const Link& link) { text(link.name), number(link.file); }
  void fields(const Leave& /*leave*/) {}
  void fields(const End& end) { number(static_cast<uint8_t>(end.is_last)); }
  void fields(const Segment& segment) {
    number(segment.file), number(segment.inode), text(segment.name);
  }

 private:
  std::string& bytes_;
};

// Reads fields. After the first field that is missing or out of its limits, is_read() is false.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool is_read() const { return is_valid_ && rest_.empty(); }
  void require(bool holds) { is_valid_ = is_valid_ && holds; }

  template <typename Number>
  void number(Number& value) {
    require(rest_.size() >= sizeof(value));
    if (!is_valid_) return;
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(value); ++i) {
      sum |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    }
    value = static_cast<Number>(sum);
    rest_.remove_prefix(sizeof(value));
  }
  void text(std::string& value, size_t bytes_max) {
    uint32_t bytes = 0;
    number(bytes);
    require(bytes <= bytes_max && bytes <= rest_.size());
    if (!is_valid_) return;
    value = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }
  void tmpfs(uint32_t& value) { number(value), require(value < kFileTmpfsMax); }
  void place(uint32_t& value) {
    number(value), require(value < kFileTmpfsMax || value == kSharedMemory);
  }
  void end(uint64_t& value) { number(value), require(value <= kFileEndMax); }
  void flag(bool& value) {
    uint8_t byte = 0;
    number(byte), require(byte <= 1);
    value = byte != 0;
  }
  // A name is exactly one component of a path, and not "." or "..".
  void name(std::string& value) {
    text(value, NAME_MAX);
    require(!value.empty() && value != "." && value != "..");
    require(value.find('/') == std::string::npos && value.find('\0') == std::string::npos);
  }
  void attributes(FileAttributes& value) {
    number(value.mode), number(value.uid), number(value.gid);
    number(value.access_ns), number(value.change_ns);
    require((value.mode & ~uint32_t{S_IFMT | 07777}) == 0);
    uint32_t count = 0;
    number(count), require(count <= kXattrsMax);
    for (uint32_t i = 0; is_valid_ && i < count; ++i) {
      auto& [name, content] = value.xattrs.emplace_back();
      text(name, XATTR_NAME_MAX), text(content, XATTR_SIZE_MAX);
      require(!name.empty() && name.find('\0') == std::string::npos);
    }
  }

  void fields(Part& part) { number(part.number); }
  void fields(Tmpfs& value) { tmpfs(value.tmpfs), text(value.options, kOptionsMaxBytes); }
  void fields(Size& size) { place(size.tmpfs), number(size.file), end(size.bytes); }
  void fields(Data& data) {
    place(data.tmpfs), number(data.file), end(data.offset), text(data.bytes, kFileDataMaxBytes);
  }
  void fields(Hole& hole) {
    place(hole.tmpfs), number(hole.file), end(hole.offset), end(hole.bytes);
    require(hole.bytes > 0);
  }
  void fields(Drop& drop) { place(drop.tmpfs), number(drop.file); }
  void fields(Tree& tree) {
    tmpfs(tree.tmpfs), attributes(tree.root), require(S_ISDIR(tree.root.mode));
  }
  void fields(Entry& entry) {
    name(entry.name), number(entry.file), end(entry.size_bytes), number(entry.device);
    text(entry.target, PATH_MAX), attributes(entry.attributes);
    const uint32_t mode = entry.attributes.mode;
    require(S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) || S_ISCHR(mode) || S_ISBLK(mode) ||
            S_ISFIFO(mode) || S_ISSOCK(mode));
    require(S_ISLNK(mode) == !entry.target.empty());
    require(entry.target.find('\0') == std::string::npos);
  }
  void fields(Link& link) { name(link.name), number(link.file); }
  void fields(Leave& /*leave*/) {}
  void fields(End& end) { flag(end.is_last); }
  void fields(Segment& segment) {
    number(segment.file), number(segment.inode), text(segment.name, kSegmentNameMaxBytes);
    require(segment.name.find('\0') == std::string::npos);
  }

 private:
  std::string_view rest_;
  bool is_valid_ = true;
};

template <size_t kType = 0>
std::optional<FileRecord> parse(size_t type, std::string_view body) {
  if constexpr (kType < std::variant_size_v<FileRecord>) {
    if (type != kType) return parse<kType + 1>(type, body);
    std::variant_alternative_t<kType, FileRecord> record;
    Fields fields(body);
    fields.fields(record);
    if (fields.is_read()) return FileRecord(std::move(record));
  }
  return std::nullopt;
}

}  // namespace

std::string file_part_name(const std::string& checkpoint, uint64_t number) {
  return checkpoint + ".files-" + std::to_string(number);
}

void append_file_record(const FileRecord& record, std::string& bytes) {
  bytes += static_cast<char>(record.index());
  const size_t place = bytes.size();
  bytes.append(kHeaderBytes - 1, '\0');
  std::visit([&](const auto& value) { Body(bytes).fields(value); }, record);
  const size_t length = bytes.size() - place - (kHeaderBytes - 1);
  for (size_t i = 0; i < kHeaderBytes - 1; ++i) {
    bytes[place + i] = static_cast<char>(length >> (8 * i));
  }
}

Status FileRecordReader::fill(size_t bytes) {
  if (buffer_.size() - used_ >= bytes) return {};
  buffer_.erase(0, used_);
  used_ = 0;
  while (buffer_.size() < bytes) {
    const size_t before = buffer_.size();
    buffer_.resize(std::max(bytes, before + kReadBytes));
    const auto n = source_({buffer_.data() + before, buffer_.size() - before});
    buffer_.resize(before + (n ? std::min(*n, buffer_.size() - before) : 0));
    if (!n) return failure(n.error());
    if (*n == 0) return failure(EPROTO, "files in memory: a part ends within a record");
  }
  return {};
}

Result<FileRecord> FileRecordReader::next() {
  if (Status filled = fill(kHeaderBytes); !filled) return failure(filled.error());
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(buffer_[used_ + i]); };
  const size_t type = byte(0);
  const size_t length = byte(1) | byte(2) << 8 | byte(3) << 16 | size_t{byte(4)} << 24;
  if (length > kBodyMaxBytes) return failure(EPROTO, "files in memory: a record is too long");
  if (Status filled = fill(kHeaderBytes + length); !filled) return failure(filled.error());
  auto record = parse(type, std::string_view(buffer_).substr(used_ + kHeaderBytes, length));
  used_ += kHeaderBytes + length;
  if (!record) return failure(EPROTO, "files in memory: a record is malformed");
  return std::move(*record);
}

}  // namespace ppmr
