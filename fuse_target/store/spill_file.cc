#include "fuse_target/store/spill_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/whole_file.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr size_t kWriteBytes = 64 << 10;  // encrypted in one step, on the stack

}  // namespace

SpillFile::SpillFile(UnnamedFile file, std::string directory, std::shared_ptr<SpillAccount> account,
                     std::shared_ptr<const BlockCipher> cipher)
    : file_(std::move(file.file)),
      reading_(std::move(file.reading)),
      directory_(std::move(directory)),
      account_(std::move(account)),
      cipher_(std::move(cipher)) {}

SpillFile::~SpillFile() { account_->bytes -= disk_bytes_; }

// ---- Checksums ---------------------------------------------------------------------------------

const uint32_t* SpillFile::checksum_locked(uint64_t block) const {
  const auto group = checksums_.find(block / kBlocksPerGroup);
  const size_t index = block % kBlocksPerGroup;
  if (group == checksums_.end() || !group->second->written[index]) return nullptr;
  return &group->second->crc32c[index];
}

void SpillFile::set_checksum_locked(uint64_t block, uint32_t checksum) {
  auto& group = checksums_[block / kBlocksPerGroup];
  if (!group) group = std::make_unique<Checksums>();
  group->written.set(block % kBlocksPerGroup);
  group->crc32c[block % kBlocksPerGroup] = checksum;
}

// ---- Whole blocks ------------------------------------------------------------------------------

Status SpillFile::damaged(uint64_t block, const std::string& what) const {
  const std::string message = "read spill file in " + directory_ + " at offset " +
                              std::to_string(block * kBlockBytes) + ": " + what;
  spdlog::error("{}; the image is lost: check the disk and send the checkpoint again", message);
  return failure(EIO, message);
}

Status SpillFile::read_blocks_locked(uint64_t first, std::span<std::byte> blocks) const {
  size_t present_bytes = 0;  // less than blocks.size() at the end of the file
  while (present_bytes < blocks.size()) {
    const auto left = blocks.subspan(present_bytes);
    const ssize_t count = ::pread(file_.get(), left.data(), left.size(),
                                  static_cast<off_t>(first * kBlockBytes + present_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return damaged(first + present_bytes / kBlockBytes, std::strerror(errno));
    if (count == 0) break;
    present_bytes += static_cast<size_t>(count);
  }
  if (Status decrypted = cipher_->decrypt(first, blocks, blocks.data()); !decrypted) {
    return decrypted;
  }
  for (size_t i = 0; i < blocks.size() / kBlockBytes; ++i) {
    const auto bytes = blocks.subspan(i * kBlockBytes, kBlockBytes);
    const uint32_t* const checksum = checksum_locked(first + i);
    if (checksum == nullptr) {
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
    } else if ((i + 1) * kBlockBytes > present_bytes) {
      return damaged(first + i, "the file is too short");
    } else if (crc32c(bytes) != *checksum) {
      return damaged(first + i, "checksum mismatch");
    }
  }
  return {};
}

Status SpillFile::write_blocks_locked(uint64_t first, std::span<const std::byte> blocks) {
  std::array<std::byte, kWriteBytes> encrypted;
  for (uint64_t block = first; !blocks.empty();) {
    const auto part = blocks.first(std::min(blocks.size(), encrypted.size()));
    if (Status done = cipher_->encrypt(block, part, encrypted.data()); !done) return done;
    if (Status done = write_to_disk(block * kBlockBytes, std::span(encrypted).first(part.size()));
        !done) {
      return done;
    }
    for (size_t at = 0; at < part.size(); at += kBlockBytes) {
      set_checksum_locked(block++, crc32c(part.subspan(at, kBlockBytes)));
    }
    blocks = blocks.subspan(part.size());
  }
  return {};
}

Status SpillFile::write_to_disk(uint64_t offset, std::span<const std::byte> bytes) {
  return write_all(file_, bytes, offset, "a spill file in " + directory_);
}

// ---- Any range ---------------------------------------------------------------------------------

// Splits the range into up to three parts: the end of a block, whole blocks, the start of a block.
Status SpillFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t used = account_->bytes;
  if (used > account_->limit_bytes || bytes.size() > account_->limit_bytes - used) {
    return failure(ENOSPC, "spill " + std::to_string(bytes.size()) + " bytes to " + directory_ +
                               ": " + std::to_string(used) + " bytes are there, and the limit is " +
                               std::to_string(account_->limit_bytes) + " (--spill-limit)");
  }
  WriterLock lock(mutex_);
  while (!bytes.empty()) {
    const uint64_t block = offset / kBlockBytes;
    const size_t begin = offset % kBlockBytes;
    size_t length = bytes.size() / kBlockBytes * kBlockBytes;
    Status written;
    if (begin == 0 && length > 0) {
      written = write_blocks_locked(block, bytes.first(length));
    } else {
      length = std::min(bytes.size(), kBlockBytes - begin);
      Block whole;
      if (auto read = read_blocks_locked(block, whole); !read) return read;
      std::copy_n(bytes.begin(), length, whole.begin() + begin);
      written = write_blocks_locked(block, whole);
    }
    if (!written) return written;
    bytes = bytes.subspan(length);
    offset += length;
  }
  count_disk_bytes_locked();
  return {};
}

Status SpillFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  ReaderLock lock(mutex_);
  while (!bytes.empty()) {
    const uint64_t block = offset / kBlockBytes;
    const size_t begin = offset % kBlockBytes;
    size_t length = bytes.size() / kBlockBytes * kBlockBytes;
    if (begin == 0 && length > 0) {
      if (auto read = read_blocks_locked(block, bytes.first(length)); !read) return read;
    } else {
      length = std::min(bytes.size(), kBlockBytes - begin);
      Block whole;
      if (auto read = read_blocks_locked(block, whole); !read) return read;
      std::copy_n(whole.begin() + begin, length, bytes.begin());
    }
    bytes = bytes.subspan(length);
    offset += length;
  }
  return {};
}

Result<UniqueFd> SpillFile::open_for_reading() const {
  UniqueFd file(::fcntl(reading_.get(), F_DUPFD_CLOEXEC, 0));
  if (!file) return system_failure("duplicate the descriptor of", "a spill file in " + directory_);
  return file;
}

Result<UniqueFd> SpillFile::copy_checksums(uint64_t first_block, size_t count) const {
  std::vector<uint32_t> checksums(count);
  {
    ReaderLock lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      if (const uint32_t* checksum = checksum_locked(first_block + i)) checksums[i] = *checksum;
    }
  }
  return create_checksum_file(cipher_->key(), checksums);
}

void SpillFile::punch_hole(uint64_t offset, uint64_t length_bytes) {
  // A block that is only partly in the range keeps all its bytes, and therefore its checksum.
  const uint64_t first = (offset + kBlockBytes - 1) / kBlockBytes;
  const uint64_t end = (offset + length_bytes) / kBlockBytes;
  if (first >= end) return;
  WriterLock lock(mutex_);
  for (auto group = checksums_.lower_bound(first / kBlocksPerGroup);
       group != checksums_.end() && group->first * kBlocksPerGroup < end;) {
    const uint64_t group_first = group->first * kBlocksPerGroup;
    const uint64_t from = std::max(first, group_first) - group_first;
    const uint64_t to = std::min<uint64_t>(end - group_first, kBlocksPerGroup);
    for (uint64_t index = from; index < to; ++index) group->second->written.reset(index);
    group = group->second->written.none() ? checksums_.erase(group) : std::next(group);
  }
  // Errors are ignored: some file systems cannot punch holes. The space then stays allocated.
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(first * kBlockBytes),
                    static_cast<off_t>((end - first) * kBlockBytes));
  count_disk_bytes_locked();
}

void SpillFile::count_disk_bytes_locked() {
  struct stat attributes {};
  if (::fstat(file_.get(), &attributes) != 0) return;
  const uint64_t now = static_cast<uint64_t>(attributes.st_blocks) * 512;
  account_->bytes += now - disk_bytes_;  // the difference is modulo 2^64
  disk_bytes_ = now;
}

// ---- The directory -----------------------------------------------------------------------------

Result<std::unique_ptr<SpillDirectory>> SpillDirectory::open(const std::string& path,
                                                             CreateFile create,
                                                             uint64_t limit_bytes) {
  auto first = create();
  if (!first) return failure(first.error());
  return std::unique_ptr<SpillDirectory>(
      new SpillDirectory(path, std::move(create), std::move(first->file), limit_bytes));
}

Result<std::unique_ptr<SpillDirectory>> SpillDirectory::open(const std::string& path) {
  return open(
      path, [path] { return create_unnamed_file(path); }, UINT64_MAX);
}

Result<std::shared_ptr<SpillFile>> SpillDirectory::create_file() const {
  auto file = create_();
  if (!file) return failure(file.error());
  auto cipher = BlockCipher::with_new_key();
  if (!cipher) return failure(cipher.error());
  return std::make_shared<SpillFile>(std::move(*file), path_, account_, std::move(*cipher));
}

uint64_t SpillDirectory::free_bytes() const {
  struct statvfs attributes {};
  if (::fstatvfs(first_.get(), &attributes) != 0) return 0;
  const uint64_t used = account_->bytes;
  const uint64_t left = account_->limit_bytes - std::min(used, account_->limit_bytes);
  return std::min(left, uint64_t{attributes.f_bavail} * attributes.f_frsize);
}

}  // namespace ppmr
