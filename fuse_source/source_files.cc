// Adds small files that come in a bundle. Without a bundle, the kernel would send three requests
// for each file.
#include <algorithm>

#include "fuse_source/source_mount.h"

namespace ppmr {
namespace {

// This file marks the checkpoint as complete. So it is added last, as CRIU also writes it last.
constexpr std::string_view kLastFile = "inventory.img";
constexpr mode_t kMode = 0600;

}  // namespace

Status SourceMount::add_files(const std::string& name, const ImageBundle& bundle) {
  const SourceNodePointer top = tree_.child(tree_.root(), name);
  if (!top) return failure(ENOENT, "checkpoint '" + name + "' does not exist");
  for (const auto& [file, bytes] : bundle.included()) {
    if (file == kLastFile) continue;
    if (Status added = add_file(*top, std::string(file), bytes); !added) return added;
  }
  const std::span<const std::byte>* last = bundle.find(kLastFile);
  return last != nullptr ? add_file(*top, std::string(kLastFile), *last) : Status{};
}

Status SourceMount::add_file(const SourceNode& directory, const std::string& name,
                             std::span<const std::byte> bytes) {
  wire::Attributes attributes;
  {
    MutexLock lock(tree_.mutex());
    attributes.uid = directory.attributes.uid;
    attributes.gid = directory.attributes.gid;
  }
  attributes.mode = kMode;
  attributes.atime_ns = attributes.mtime_ns = now_ns();
  const auto node = make(directory.id, name, wire::NodeType::kFile, attributes, "");
  if (!node) return failure(node.error());
  if (Status open = opened(*node, /*for_writing=*/true, /*is_new=*/true); !open) return open;
  const Status written = without_exceptions([&]() -> Status {
    uint64_t offset = 0;
    while (offset < bytes.size()) {
      const auto piece = bytes.subspan(offset).first(
          std::min<uint64_t>(chunk_size_bytes(), bytes.size() - offset));
      CutChunks cut;
      const auto count = write(
          *node, piece, offset, [] { return false; }, cut);
      cut.announce(*(*node)->checkpoint->outlet);
      if (!count) return failure(count.error());
      offset += *count;
    }
    return {};
  });
  // A file that lacks bytes must not be sealed.
  if (!written) (*node)->checkpoint->error->set(written.error());
  released(*node, /*for_writing=*/true);
  return written;
}

}  // namespace ppmr
