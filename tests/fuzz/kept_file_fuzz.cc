// Fuzzes what a disk may return for a kept checkpoint: the whole file, and the decrypted index, as
// a writer who has the key could choose it.
#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "fuse_target/keep/kept_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace ppmr;

void check_index(uint64_t data_blocks, const std::string& bytes) {
  auto index = unpack_index(bytes, data_blocks);
  if (!index) return;
  REQUIRE(data_blocks_of(*index) == data_blocks);
  const auto& nodes = index->listing.nodes;
  REQUIRE(!nodes.empty() && index->stretches.size() == nodes.size());
  std::set<std::pair<uint32_t, std::string>> names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ListedNode& node = nodes[i];
    REQUIRE(node.name.find('/') == std::string::npos && node.name != "..");
    REQUIRE(i == 0 || node.parent < i);
    REQUIRE(i == 0 || nodes[node.parent].type == wire::NodeType::kDirectory);
    REQUIRE(i == 0 || names.emplace(node.parent, node.name).second);
  }
  const auto packed = pack_index(*index);
  const auto again = packed ? unpack_index(*packed, data_blocks) : Result<KeptIndex>(KeptIndex());
  REQUIRE(packed && again && *pack_index(*again) == *packed);
  place_bytes(*index, nullptr, KeptPlaces(data_blocks).first_data_block);
  for (const ListedNode& node : nodes) {
    uint64_t end = 0;
    for (const KeptBytes::Extent& extent : node.kept.extents) {
      REQUIRE(extent.offset >= end && extent.length > 0);
      REQUIRE(extent.offset < node.size_bytes);
      REQUIRE(extent.place + extent.length <= KeptPlaces(data_blocks).index_offset);
      end = extent.offset + extent.length;
    }
  }
}

void check_file(std::span<const uint8_t> bytes) {
  UniqueFd file(memfd_create("kept", MFD_CLOEXEC));
  REQUIRE(file && write(file.get(), bytes.data(), bytes.size()) == ssize_t(bytes.size()));
  (void)KeptFile::name_in_header(file);
  const SharedKey key{};
  if (const auto opened = KeptFile::open(std::move(file), std::span(&key, 1), "kept")) {
    (void)opened->file->verify();
  }
}

}  // namespace

void fuzz(std::span<const uint8_t> input) {
  if (input.size() < 2) return;
  if (input[0] == 'f') return check_file(input.subspan(1));
  check_index(input[1], text_of(input.subspan(2)));
}
