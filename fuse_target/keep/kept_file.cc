#include "fuse_target/keep/kept_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr size_t kVerifyBytes = 1 << 20;

// Returns the number of bytes before the end of the file, or an error.
Result<size_t> read_at(const UniqueFd& file, uint64_t offset, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(file.get(), bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("read", "the kept file");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

template <typename T>
Status read_struct(const UniqueFd& file, uint64_t offset, T& value) {
  const auto count = read_at(file, offset, std::as_writable_bytes(std::span(&value, 1)));
  if (!count) return failure(count.error());
  if (*count < sizeof value) return failure(EBADMSG, "the file is too short");
  return {};
}

bool has_magic(const KeptHeader& header) {
  return header.magic == KeptHeader().magic && header.name_bytes <= header.name.size();
}

const SharedKey* find_key(std::span<const SharedKey> keys, const KeptHeader& header) {
  const std::string wanted(header.key_id.data(), header.key_id.size());
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const SharedKey& key) {
    return key_id(key).substr(0, wanted.size()) == wanted;
  });
  return found == keys.end() ? nullptr : &*found;
}

// Returns the key id for a message, or "unknown". The header is not authenticated yet, so the id
// may have any bytes.
std::string printable_key_id(const KeptHeader& header) {
  std::string id(header.key_id.data(), header.key_id.size());
  const bool valid = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  return valid ? id : "unknown";
}

}  // namespace

KeptFile::KeptFile(UniqueFd file, std::string path, const BlockCipher::Key& key,
                   uint64_t data_blocks, uint64_t size_bytes, std::vector<uint32_t> checksum_crc32c)
    : file_(std::move(file)),
      path_(std::move(path)),
      cipher_(key),
      data_blocks_(data_blocks),
      places_(data_blocks),
      size_bytes_(size_bytes),
      checksum_crc32c_(std::move(checksum_crc32c)) {}

std::string KeptFile::name_in_header(const UniqueFd& file) {
  KeptHeader header;
  if (!read_struct(file, 0, header) || !has_magic(header)) return "";
  return {header.name.data(), header.name_bytes};
}

Result<KeptFile::Opened> KeptFile::open(UniqueFd file, std::span<const SharedKey> keys,
                                        std::string path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    return system_failure("read the attributes of", "the kept file");
  if (!S_ISREG(status.st_mode)) return failure(EBADMSG, "not a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < kKeptBlockBytes + sizeof(KeptTrailer)) {
    return failure(EBADMSG, "torn: the file is too short");
  }
  KeptHeader header;
  if (Status done = read_struct(file, 0, header); !done) return failure(done.error());
  if (!has_magic(header)) return failure(EBADMSG, "damaged: it has no header");
  if (header.version != kKeptVersion) {
    return failure(EBADMSG, "written by another version of ppmr (format " +
                                std::to_string(header.version) + ")");
  }
  KeptTrailer trailer;
  if (Status done = read_struct(file, size - sizeof trailer, trailer); !done) {
    return failure(done.error());
  }
  if (trailer.magic != KeptTrailer().magic) {
    return failure(EBADMSG, "torn: the end of the file is missing");
  }
  const SharedKey* const key = find_key(keys, header);
  if (key == nullptr) {
    return failure(EKEYREJECTED, "encrypted with the key " + printable_key_id(header) +
                                     ", which is not in --keep-key");
  }
  const uint64_t blocks_max = size / kKeptBlockBytes;
  if (trailer.data_blocks > blocks_max || trailer.index_bytes > kIndexMaxBytes ||
      KeptPlaces(trailer.data_blocks).index_offset + trailer.index_bytes + sizeof trailer != size) {
    return failure(EBADMSG, "torn: its length differs from what was written");
  }
  Locked<KeptFileKeys> file_keys;
  derive_kept_keys(*key, header, *file_keys);
  std::string bytes(trailer.index_bytes, '\0');
  const auto index_bytes = std::as_writable_bytes(std::span(bytes));
  const KeptPlaces places(trailer.data_blocks);
  const auto count = read_at(file, places.index_offset, index_bytes);
  if (!count) return failure(count.error());
  if (*count != bytes.size()) return failure(EBADMSG, "torn: the index is too short");
  if (Status done = decrypt_index(*file_keys, header, trailer, index_bytes); !done) {
    return failure(done.error());
  }
  auto index = unpack_index(bytes, trailer.data_blocks);
  if (!index) return failure(index.error());
  if (index->listing.name() != std::string(header.name.data(), header.name_bytes)) {
    return failure(EBADMSG, "the index has another name than the header");
  }
  const std::shared_ptr<const KeptFile> opened(
      new KeptFile(std::move(file), std::move(path), file_keys->blocks, trailer.data_blocks, size,
                   std::move(index->checksum_crc32c)));
  place_bytes(*index, opened, places.first_data_block);
  return Opened{opened, std::move(index->listing)};
}

Status KeptFile::damaged(uint64_t block, const std::string& what) const {
  const std::string message =
      "read " + path_ + " at offset " + std::to_string(block * kKeptBlockBytes) + ": " + what;
  spdlog::error("{}; these bytes of the kept checkpoint are lost: check the disk", message);
  return failure(EIO, message);
}

// ---- Blocks ------------------------------------------------------------------------------------

Status KeptFile::read_checksums(uint64_t first_data_block, std::span<uint32_t> checksums) const {
  for (uint64_t at = first_data_block; !checksums.empty();) {
    const uint64_t group = at / kChecksumsPerBlock;
    const uint64_t number = KeptPlaces::kFirstChecksumBlock + group;
    std::array<uint32_t, kChecksumsPerBlock> block;
    const auto bytes = std::as_writable_bytes(std::span(block));
    const auto count = read_at(file_, number * kKeptBlockBytes, bytes);
    if (!count) return damaged(number, count.error().message);
    if (*count != bytes.size()) return damaged(number, "the file is too short");
    if (Status done = cipher_.decrypt(number, bytes, bytes.data()); !done) return done;
    if (crc32c(bytes) != checksum_crc32c_[group]) return damaged(number, "checksum mismatch");
    const size_t begin = at % kChecksumsPerBlock;
    const size_t part = std::min(checksums.size(), kChecksumsPerBlock - begin);
    std::copy_n(block.begin() + static_cast<ptrdiff_t>(begin), part, checksums.begin());
    checksums = checksums.subspan(part);
    at += part;
  }
  return {};
}

Status KeptFile::read_blocks(uint64_t first, std::span<std::byte> blocks) const {
  const uint64_t count = blocks.size() / kKeptBlockBytes;
  if (first < places_.first_data_block || first - places_.first_data_block > data_blocks_ ||
      count > data_blocks_ - (first - places_.first_data_block)) {
    return failure(EINVAL, "read " + path_ + ": not a block of data");
  }
  std::vector<uint32_t> checksums(count);
  if (Status done = read_checksums(first - places_.first_data_block, checksums); !done) return done;
  const auto present = read_at(file_, first * kKeptBlockBytes, blocks);
  if (!present) return damaged(first, present.error().message);
  if (*present != blocks.size()) {
    return damaged(first + *present / kKeptBlockBytes, "the file is too short");
  }
  if (Status done = cipher_.decrypt(first, blocks, blocks.data()); !done) return done;
  for (uint64_t i = 0; i < count; ++i) {
    if (crc32c(blocks.subspan(i * kKeptBlockBytes, kKeptBlockBytes)) != checksums[i]) {
      return damaged(first + i, "checksum mismatch");
    }
  }
  return {};
}

Status KeptFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const uint64_t block = offset / kKeptBlockBytes;
    const size_t begin = offset % kKeptBlockBytes;
    size_t length = bytes.size() / kKeptBlockBytes * kKeptBlockBytes;
    if (begin == 0 && length > 0) {
      if (Status done = read_blocks(block, bytes.first(length)); !done) return done;
    } else {
      length = std::min(bytes.size(), kKeptBlockBytes - begin);
      std::array<std::byte, kKeptBlockBytes> whole;
      if (Status done = read_blocks(block, whole); !done) return done;
      std::copy_n(whole.begin() + static_cast<ptrdiff_t>(begin), length, bytes.begin());
    }
    bytes = bytes.subspan(length);
    offset += length;
  }
  return {};
}

Status KeptFile::verify(const std::function<Status()>& between) const {
  std::vector<std::byte> buffer(kVerifyBytes);
  for (uint64_t done = 0; done < data_blocks_;) {
    const uint64_t count = std::min(data_blocks_ - done, buffer.size() / kKeptBlockBytes);
    const auto blocks = std::span(buffer).first(count * kKeptBlockBytes);
    const uint64_t first = places_.first_data_block + done;
    if (Status read = read_blocks(first, blocks); !read) return read;
    // Free the page cache: no reader needs these blocks soon, and images need the memory.
    ::posix_fadvise(file_.get(), static_cast<off_t>(first * kKeptBlockBytes),
                    static_cast<off_t>(blocks.size()), POSIX_FADV_DONTNEED);
    done += count;
    if (Status goes_on = between ? between() : Status(); !goes_on) return goes_on;
  }
  return {};
}

bool KeptFile::is_linked() const {
  struct stat status {};
  return ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0;
}

// ---- Borrowers ---------------------------------------------------------------------------------

Result<UniqueFd> KeptFile::open_for_reading() const {
  UniqueFd file(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (!file) return system_failure("duplicate the descriptor of", path_);
  return file;
}

Result<UniqueFd> KeptFile::copy_checksums(uint64_t first_block, size_t count) const {
  if (first_block < places_.first_data_block || count > data_blocks_ ||
      first_block - places_.first_data_block > data_blocks_ - count) {
    return failure(EINVAL, "lend " + path_ + ": not blocks of data");
  }
  std::vector<uint32_t> checksums(count);
  if (Status read = read_checksums(first_block - places_.first_data_block, checksums); !read) {
    return failure(read.error());
  }
  return create_checksum_file(cipher_.key(), checksums);
}

}  // namespace ppmr
