// Writes the file of a kept checkpoint. The caller knows the number of data blocks before the first
// one is written, because the checkpoint is sealed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/block_cipher.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "fuse_target/keep/kept_index.h"
#include "fuse_target/keep/kept_layout.h"

namespace ppmr {

// After an error the file is useless. Threads: one.
class KeptWriter {
 public:
  // `file` is empty, open for writing, and stays open. `path` is only used in messages. Errors: EIO
  // if the system has no random numbers.
  static Result<std::unique_ptr<KeptWriter>> create(const UniqueFd& file, std::string path,
                                                    const std::string& checkpoint,
                                                    const SharedKey& key, uint64_t data_blocks);

  // Encrypts and writes the next data blocks, in the order of the index. `blocks` contains whole
  // blocks. After each 32 MiB the call waits for the disk, so that the number of dirty pages stays
  // small. Errors: ENOSPC, EIO and others of pwrite(2).
  Status append(std::span<const std::byte> blocks);
  // Writes checksums, index and trailer, and syncs the file. Fills in index.checksum_crc32c.
  // Errors: those of append(); EFBIG; EIO if not all blocks were written.
  Status finish(KeptIndex& index);

 private:
  KeptWriter(const UniqueFd& file, std::string path, const KeptHeader& header,
             uint64_t data_blocks);
  Status write_at(uint64_t offset, std::span<const std::byte> bytes);
  Status write_checksums();

  const UniqueFd& file_;
  const std::string path_;
  const KeptHeader header_;
  const uint64_t data_blocks_;
  const KeptPlaces places_;
  Locked<KeptFileKeys> keys_;
  std::unique_ptr<BlockCipher> cipher_;
  uint64_t written_blocks_ = 0;
  uint64_t unsynced_bytes_ = 0;
  std::vector<uint32_t> checksums_;  // of the data blocks since the last block of checksums
  std::vector<uint32_t> checksum_crc32c_;
  std::vector<std::byte> encrypted_;
};

}  // namespace ppmr
