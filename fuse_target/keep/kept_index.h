// The index of a kept checkpoint: a CheckpointListing as bytes (kept_index.proto), and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "fuse_target/store/checkpoint_listing.h"

namespace ppmr {

// Whole blocks of a file, by number in the file.
struct BlockStretch {
  uint64_t first = 0;
  uint64_t count = 0;
};
// The blocks that ranges of bytes touch, merged, by number.
struct Range;
std::vector<BlockStretch> blocks_of(const std::vector<Range>& ranges);

struct KeptIndex {
  CheckpointListing listing;                         // without `kept`
  std::vector<std::vector<BlockStretch>> stretches;  // of each node
  std::vector<uint32_t> checksum_crc32c;
};

uint64_t data_blocks_of(const KeptIndex& index);

// Errors of pack: EFBIG. Errors of unpack: EBADMSG if the bytes are no index of a file with
// `data_blocks`: they were decrypted, so a program with the key wrote them, but they may be of
// another version.
Result<std::string> pack_index(const KeptIndex& index);
Result<KeptIndex> unpack_index(const std::string& bytes, uint64_t data_blocks);

// Gives each file of the listing its bytes, which begin at this block of `bytes`.
void place_bytes(KeptIndex& index, const std::shared_ptr<const DiskBytes>& bytes,
                 uint64_t first_data_block);

}  // namespace ppmr
