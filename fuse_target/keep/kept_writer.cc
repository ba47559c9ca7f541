#include "fuse_target/keep/kept_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr size_t kEncryptBytes = 256 << 10;
// After this many bytes the writer waits until they are on the disk, and drops them from the page
// cache, because images need the memory.
constexpr uint64_t kSyncBytes = 32 << 20;

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

KeptWriter::KeptWriter(const UniqueFd& file, std::string path, const KeptHeader& header,
                       uint64_t data_blocks)
    : file_(file),
      path_(std::move(path)),
      header_(header),
      data_blocks_(data_blocks),
      places_(data_blocks),
      encrypted_(kEncryptBytes) {}

Result<std::unique_ptr<KeptWriter>> KeptWriter::create(const UniqueFd& file, std::string path,
                                                       const std::string& checkpoint,
                                                       const SharedKey& key, uint64_t data_blocks) {
  const auto header = make_kept_header(checkpoint, key);
  if (!header) return failure(header.error());
  std::unique_ptr<KeptWriter> writer(new KeptWriter(file, std::move(path), *header, data_blocks));
  derive_kept_keys(key, *header, *writer->keys_);
  writer->cipher_ = std::make_unique<BlockCipher>(writer->keys_->blocks);
  std::array<std::byte, kKeptBlockBytes> block{};
  std::memcpy(block.data(), &*header, sizeof *header);
  if (Status done = writer->write_at(0, block); !done) return failure(done.error());
  return writer;
}

Status KeptWriter::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  unsynced_bytes_ += bytes.size();
  return write_all(file_, bytes, offset, path_);
}

// Writes the next block of checksums.
Status KeptWriter::write_checksums() {
  std::array<std::byte, kKeptBlockBytes> block{};
  std::memcpy(block.data(), checksums_.data(), checksums_.size() * sizeof(uint32_t));
  checksums_.clear();
  const uint64_t number = KeptPlaces::kFirstChecksumBlock + checksum_crc32c_.size();
  checksum_crc32c_.push_back(crc32c(block));
  if (Status done = cipher_->encrypt(number, block, block.data()); !done) return done;
  return write_at(number * kKeptBlockBytes, block);
}

Status KeptWriter::append(std::span<const std::byte> blocks) {
  while (!blocks.empty()) {
    const auto part = blocks.first(std::min(blocks.size(), encrypted_.size()));
    const uint64_t count = part.size() / kKeptBlockBytes;
    if (part.size() % kKeptBlockBytes != 0 || count > data_blocks_ - written_blocks_) {
      return failure(EIO, "write " + path_ + ": the checkpoint has changed");
    }
    const uint64_t number = places_.first_data_block + written_blocks_;
    if (Status done = cipher_->encrypt(number, part, encrypted_.data()); !done) return done;
    for (uint64_t i = 0; i < count; ++i) {
      checksums_.push_back(crc32c(part.subspan(i * kKeptBlockBytes, kKeptBlockBytes)));
      if (checksums_.size() < kChecksumsPerBlock) continue;
      if (Status done = write_checksums(); !done) return done;
    }
    if (Status done = write_at(number * kKeptBlockBytes, std::span(encrypted_).first(part.size()));
        !done) {
      return done;
    }
    written_blocks_ += count;
    blocks = blocks.subspan(part.size());
  }
  if (unsynced_bytes_ < kSyncBytes) return {};
  unsynced_bytes_ = 0;
  if (::fdatasync(file_.get()) != 0) return system_failure("sync", path_);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Status KeptWriter::finish(KeptIndex& index) {
  if (written_blocks_ != data_blocks_) {
    return failure(EIO, "write " + path_ + ": the checkpoint has changed");
  }
  if (!checksums_.empty()) {
    if (Status done = write_checksums(); !done) return done;
  }
  index.checksum_crc32c = std::move(checksum_crc32c_);
  auto packed = pack_index(index);
  if (!packed) return failure(packed.error());
  KeptTrailer trailer;
  trailer.data_blocks = data_blocks_;
  trailer.index_bytes = packed->size();
  const auto bytes = std::as_writable_bytes(std::span(*packed));
  if (Status done = encrypt_index(*keys_, header_, trailer, bytes); !done) return done;
  if (Status done = write_at(places_.index_offset, bytes); !done) return done;
  if (Status done = write_at(places_.index_offset + bytes.size(), bytes_of(trailer)); !done) {
    return done;
  }
  if (::fsync(file_.get()) != 0) return system_failure("sync", path_);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

}  // namespace ppmr
