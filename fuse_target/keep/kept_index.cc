#include "fuse_target/keep/kept_index.h"

#include <set>

#include "fuse_target/keep/kept_index.pb.h"
#include "fuse_target/keep/kept_layout.h"
#include "fuse_target/store/range_set.h"

namespace ppmr {
namespace {

constexpr uint64_t kBlocksMax = uint64_t{INT64_MAX} / kKeptBlockBytes;

tl::unexpected<Error> malformed(const std::string& what) {
  return failure(EBADMSG, "the index is malformed: " + what);
}

bool is_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= wire::kNameMaxBytes &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

void pack(const ListedNode& node, const std::vector<BlockStretch>& stretches, kept::Node& packed) {
  packed.set_parent(node.parent);
  packed.set_name(node.name);
  packed.set_type(static_cast<uint32_t>(node.type));
  packed.set_mode(node.attributes.mode);
  packed.set_uid(node.attributes.uid);
  packed.set_gid(node.attributes.gid);
  packed.set_atime_ns(node.attributes.atime_ns);
  packed.set_mtime_ns(node.attributes.mtime_ns);
  packed.set_ctime_ns(node.ctime_ns);
  packed.set_link_target(node.link_target);
  packed.set_size_bytes(node.size_bytes);
  uint64_t end = 0;
  for (const BlockStretch& stretch : stretches) {
    packed.add_gap(stretch.first - end);
    packed.add_blocks(stretch.count);
    end = stretch.first + stretch.count;
  }
}

Status unpack(const kept::Node& packed, ListedNode& node, std::vector<BlockStretch>& stretches) {
  node.parent = packed.parent();
  node.name = packed.name();
  node.type = static_cast<wire::NodeType>(packed.type());
  node.attributes = {packed.mode() & 07777, packed.uid(), packed.gid(), packed.atime_ns(),
                     packed.mtime_ns()};
  node.ctime_ns = packed.ctime_ns();
  node.link_target = packed.link_target();
  node.size_bytes = packed.size_bytes();
  const bool is_link = node.type == wire::NodeType::kSymlink;
  if (!is_name(node.name)) return malformed("the name of a file is invalid");
  if (!node.is_file() && !is_link && node.type != wire::NodeType::kDirectory) {
    return malformed("the type of a file is unknown");
  }
  if (is_link == node.link_target.empty() || node.link_target.size() > wire::kLinkTargetMaxBytes ||
      node.link_target.find('\0') != std::string::npos) {
    return malformed("the target of a link is invalid");
  }
  if (node.size_bytes > uint64_t{INT64_MAX} || (!node.is_file() && node.size_bytes != 0)) {
    return malformed("the size of a file is out of range");
  }
  const auto stretch_count = packed.gap_size();
  if (packed.blocks_size() != stretch_count || (!node.is_file() && stretch_count > 0)) {
    return malformed("the blocks of a file are invalid");
  }
  const uint64_t file_blocks = (node.size_bytes + kKeptBlockBytes - 1) / kKeptBlockBytes;
  uint64_t end = 0;
  for (int i = 0; i < stretch_count; ++i) {
    const uint64_t gap = packed.gap(i);
    const uint64_t count = packed.blocks(i);
    const bool follows_on = i > 0 && gap == 0;
    if (count == 0 || follows_on || gap > file_blocks - end || count > file_blocks - end - gap) {
      return malformed("the blocks of a file are invalid");
    }
    stretches.push_back({end + gap, count});
    end += gap + count;
  }
  return {};
}

}  // namespace

std::vector<BlockStretch> blocks_of(const std::vector<Range>& ranges) {
  std::vector<BlockStretch> stretches;
  for (const Range& range : ranges) {
    if (range.empty()) continue;
    const uint64_t first = range.begin / kKeptBlockBytes;
    const uint64_t end = (range.end - 1) / kKeptBlockBytes + 1;
    if (!stretches.empty()) {
      BlockStretch& last = stretches.back();
      if (first <= last.first + last.count) {
        last.count = std::max(end, last.first + last.count) - last.first;
        continue;
      }
    }
    stretches.push_back({first, end - first});
  }
  return stretches;
}

uint64_t data_blocks_of(const KeptIndex& index) {
  uint64_t blocks = 0;
  for (const auto& stretches : index.stretches) {
    for (const BlockStretch& stretch : stretches) blocks += stretch.count;
  }
  return blocks;
}

Result<std::string> pack_index(const KeptIndex& index) {
  kept::Index packed;
  const CheckpointListing& listing = index.listing;
  packed.set_owner(listing.owner);
  packed.set_source_name(listing.source_name);
  packed.set_begun_ns(listing.begun_ns);
  packed.set_sealed_ns(listing.sealed_ns);
  packed.set_landed_bytes(listing.landed_bytes);
  for (size_t i = 0; i < listing.nodes.size(); ++i) {
    pack(listing.nodes[i], index.stretches[i], *packed.add_node());
  }
  for (const uint32_t checksum : index.checksum_crc32c) packed.add_checksum_crc32c(checksum);
  std::string bytes;
  if (packed.ByteSizeLong() > kIndexMaxBytes || !packed.SerializeToString(&bytes)) {
    return failure(EFBIG, "keep a checkpoint: it has too many files or holes");
  }
  return bytes;
}

Result<KeptIndex> unpack_index(const std::string& bytes, uint64_t data_blocks) {
  kept::Index packed;
  if (bytes.size() > kIndexMaxBytes || !packed.ParseFromString(bytes)) {
    return malformed("it cannot be parsed");
  }
  KeptIndex index;
  CheckpointListing& listing = index.listing;
  listing.owner = packed.owner();
  listing.source_name = packed.source_name();
  listing.begun_ns = packed.begun_ns();
  listing.sealed_ns = packed.sealed_ns();
  listing.landed_bytes = packed.landed_bytes();
  listing.nodes.resize(static_cast<size_t>(packed.node_size()));
  index.stretches.resize(listing.nodes.size());
  if (listing.nodes.empty()) return malformed("it is empty");
  std::set<std::pair<uint32_t, std::string>> names;
  uint64_t blocks = 0;
  for (size_t i = 0; i < listing.nodes.size(); ++i) {
    ListedNode& node = listing.nodes[i];
    if (Status done = unpack(packed.node(static_cast<int>(i)), node, index.stretches[i]); !done) {
      return failure(done.error());
    }
    if (i == 0
            ? node.parent != 0
            : node.parent >= i || listing.nodes[node.parent].type != wire::NodeType::kDirectory) {
      return malformed("the directory of a file is invalid");
    }
    if (i > 0 && !names.emplace(node.parent, node.name).second) return malformed("equal names");
    for (const BlockStretch& stretch : index.stretches[i]) {
      if (stretch.count > kBlocksMax - blocks) return malformed("too many blocks");
      blocks += stretch.count;
    }
  }
  if (blocks != data_blocks) return malformed("it belongs to another file");
  index.checksum_crc32c.assign(packed.checksum_crc32c().begin(), packed.checksum_crc32c().end());
  if (index.checksum_crc32c.size() != KeptPlaces(data_blocks).checksum_blocks) {
    return malformed("checksums are missing");
  }
  return index;
}

void place_bytes(KeptIndex& index, const std::shared_ptr<const DiskBytes>& bytes,
                 uint64_t first_data_block) {
  uint64_t place = first_data_block * kKeptBlockBytes;
  for (size_t i = 0; i < index.listing.nodes.size(); ++i) {
    KeptBytes& kept = index.listing.nodes[i].kept;
    if (index.listing.nodes[i].is_file()) kept.bytes = bytes;
    for (const BlockStretch& stretch : index.stretches[i]) {
      const uint64_t length = stretch.count * kKeptBlockBytes;
      kept.extents.push_back({stretch.first * kKeptBlockBytes, length, place});
      place += length;
    }
  }
}

}  // namespace ppmr
