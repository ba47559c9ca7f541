// Image bytes for which there is no memory: an unnamed, sparse file in the spill directory. A byte
// has the same offset in this file as in its image file.
//
// The disk is not trusted. The file is written in encrypted whole blocks of 4 KiB. The key exists
// only in memory, so bytes that stay on the disk are useless without the daemon. The CRC32C of each
// plain block also stays in memory (1 KiB for 1 MiB on the disk). A read verifies every block that
// it touches; without the key it is impossible to change a block so that it fits its CRC32C.
//
// Rejected: one checksum per chunk. A read of a few bytes would have to read the whole chunk, and a
// chunk that is overwritten in part would lose its checksum.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/block_cipher.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/unnamed_file.h"
#include "fuse_target/store/disk_bytes.h"

namespace ppmr {

// The number of spilled bytes on the disk, summed over the files of one directory.
struct SpillAccount {
  std::atomic<uint64_t> bytes = 0;
  const uint64_t limit_bytes = UINT64_MAX;
};

// The destructor closes the file and so frees its disk space, which can take seconds for a large
// file: destroy the object without holding a lock. Threads: any thread may call any member. Reads
// run in parallel; a write excludes all other calls.
class SpillFile final : public DiskBytes {
 public:
  // `directory` is only used in messages.
  SpillFile(UnnamedFile file, std::string directory, std::shared_ptr<SpillAccount> account,
            std::shared_ptr<const BlockCipher> cipher);
  ~SpillFile() override;

  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // After an error the content of the range is undefined. Errors: ENOSPC when the disk is full or
  // the account has reached its limit; EIO. Writes that run at the same time may exceed the limit
  // by their own bytes.
  Status write(uint64_t offset, std::span<const std::byte> bytes);
  // Blocks that were never written, and blocks that were punched, read as zeros.
  Status read(uint64_t offset, std::span<std::byte> bytes) const override;
  Result<UniqueFd> open_for_reading() const override;
  Result<UniqueFd> copy_checksums(uint64_t first_block, size_t count) const override;
  // Frees disk space. The content of the range is undefined until it is written again.
  void punch_hole(uint64_t offset, uint64_t length_bytes);

 private:
  static constexpr size_t kBlocksPerGroup = 512;
  using Block = std::array<std::byte, kBlockBytes>;
  struct Checksums {  // checksums of a group of consecutive blocks
    std::bitset<kBlocksPerGroup> written;
    std::array<uint32_t, kBlocksPerGroup> crc32c;
  };

  const uint32_t* checksum_locked(uint64_t block) const
      PPMR_REQUIRES_SHARED(mutex_);  // null: never written
  void set_checksum_locked(uint64_t block, uint32_t checksum) PPMR_REQUIRES(mutex_);
  Status read_blocks_locked(uint64_t first, std::span<std::byte> blocks) const
      PPMR_REQUIRES_SHARED(mutex_);
  Status write_blocks_locked(uint64_t first, std::span<const std::byte> blocks)
      PPMR_REQUIRES(mutex_);
  Status write_to_disk(uint64_t offset, std::span<const std::byte> bytes);
  Status damaged(uint64_t block, const std::string& what) const;
  void count_disk_bytes_locked() PPMR_REQUIRES(mutex_);

  const UniqueFd file_;
  const UniqueFd reading_;  // the same file, for borrowers
  const std::string directory_;
  const std::shared_ptr<SpillAccount> account_;
  const std::shared_ptr<const BlockCipher> cipher_;

  mutable SharedMutex mutex_;  // held across disk I/O
  // By number of the group.
  std::map<uint64_t, std::unique_ptr<Checksums>> checksums_ PPMR_GUARDED_BY(mutex_);
  uint64_t disk_bytes_ PPMR_GUARDED_BY(mutex_) = 0;  // this file's part of the account
};

// Threads: any thread may call any member.
class SpillDirectory {
 public:
  using CreateFile = std::function<Result<UnnamedFile>()>;

  // Creates one file, to verify that this is possible. `create` creates the files in `path`,
  // because the target itself may not. `limit_bytes` limits the sum of all files. Errors: those of
  // `create`.
  static Result<std::unique_ptr<SpillDirectory>> open(const std::string& path, CreateFile create,
                                                      uint64_t limit_bytes);
  // Like the other open(), with create_unnamed_file() and without a limit.
  static Result<std::unique_ptr<SpillDirectory>> open(const std::string& path);
  virtual ~SpillDirectory() = default;

  // Errors: EMFILE, ENOSPC and others of open(2); EIO if the system has no random numbers.
  virtual Result<std::shared_ptr<SpillFile>> create_file() const;
  uint64_t spilled_bytes() const { return account_->bytes; }
  uint64_t free_bytes() const;  // of the disk, up to the limit

 protected:
  // `first` is an empty file in the directory.
  SpillDirectory(std::string path, CreateFile create, UniqueFd first, uint64_t limit_bytes)
      : path_(std::move(path)),
        create_(std::move(create)),
        first_(std::move(first)),
        account_(new SpillAccount{.limit_bytes = limit_bytes}) {}

 private:
  const std::string path_;
  const CreateFile create_;
  const UniqueFd first_;
  const std::shared_ptr<SpillAccount> account_;
};

}  // namespace ppmr
