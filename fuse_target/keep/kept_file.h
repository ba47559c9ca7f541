// A kept checkpoint on the disk, open for reading. Only its index is in memory; the rest is read
// and verified when a reader asks for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/block_cipher.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "fuse_target/keep/kept_index.h"
#include "fuse_target/keep/kept_layout.h"
#include "fuse_target/store/disk_bytes.h"

namespace ppmr {

// Threads: any.
class KeptFile final : public DiskBytes {
 public:
  struct Opened {
    std::shared_ptr<const KeptFile> file;
    CheckpointListing listing;  // its files have their bytes in `file`
  };
  // Reads header, trailer and index. `keys`: the operator's keys, one of which must be the key of
  // the file. `path` is only used in messages. Errors: EKEYREJECTED if none is the key of the file;
  // EBADMSG for a file that is torn, damaged, or of another version; EIO. The message of these
  // errors has the reason, but not the path.
  static Result<Opened> open(UniqueFd file, std::span<const SharedKey> keys, std::string path);
  // Returns the name in the header, which is not authenticated; empty if the file has no header.
  static std::string name_in_header(const UniqueFd& file);

  // ---- DiskBytes. Offsets count from the start of this file; only data blocks can be read.
  Status read(uint64_t offset, std::span<std::byte> bytes) const override;
  Result<UniqueFd> open_for_reading() const override;
  Result<UniqueFd> copy_checksums(uint64_t first_block, size_t count) const override;

  uint64_t size_bytes() const { return size_bytes_; }
  // Returns whether the file still has a name on the disk.
  bool is_linked() const;
  // Reads and verifies all data blocks. Reads them from the disk, except for those in the page
  // cache. Calls `between` after each MiB; an error of `between` ends the call. Errors: EIO; those
  // of `between`.
  Status verify(const std::function<Status()>& between = nullptr) const;

 private:
  KeptFile(UniqueFd file, std::string path, const BlockCipher::Key& key, uint64_t data_blocks,
           uint64_t size_bytes, std::vector<uint32_t> checksum_crc32c);
  Status read_checksums(uint64_t first_data_block, std::span<uint32_t> checksums) const;
  Status read_blocks(uint64_t first, std::span<std::byte> blocks) const;
  Status damaged(uint64_t block, const std::string& what) const;

  const UniqueFd file_;
  const std::string path_;
  const BlockCipher cipher_;
  const uint64_t data_blocks_;
  const KeptPlaces places_;
  const uint64_t size_bytes_;
  const std::vector<uint32_t> checksum_crc32c_;
};

}  // namespace ppmr
