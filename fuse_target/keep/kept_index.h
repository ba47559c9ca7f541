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
// Returns the blocks that the ranges of bytes touch: sorted, and with adjacent blocks in one
// stretch.
struct Range;
std::vector<BlockStretch> blocks_of(const std::vector<Range>& ranges);

struct KeptIndex {
  CheckpointListing listing;                         // without `kept`
  std::vector<std::vector<BlockStretch>> stretches;  // the stored blocks of each node
  std::vector<uint32_t> checksum_crc32c;
};

uint64_t data_blocks_of(const KeptIndex& index);

// Converts an index to bytes, and bytes to an index. Errors of pack_index(): EFBIG for too many
// files or holes. Errors of unpack_index(): EBADMSG if the bytes are not the index of a file with
// `data_blocks` data blocks. Bytes that could be decrypted come from a program with the key, but
// that program may be another version of ppmr.
Result<std::string> pack_index(const KeptIndex& index);
Result<KeptIndex> unpack_index(const std::string& bytes, uint64_t data_blocks);

// Sets the place of the bytes of each file in the listing. The bytes of the first file begin at
// block `first_data_block` of `bytes`.
void place_bytes(KeptIndex& index, const std::shared_ptr<const DiskBytes>& bytes,
                 uint64_t first_data_block);

}  // namespace ppmr
