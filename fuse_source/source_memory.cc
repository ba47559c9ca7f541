// Memory of frozen processes: read into slots and sent like written bytes.
#include <algorithm>
#include <cstring>

#include "fuse_source/memory_reader.h"
#include "fuse_source/source_mount.h"

namespace ppmr {
namespace {

// Trees that move at the same time each hold a slot. If they took all slots, none could get another
// for its parts: then zero pages are sent.
constexpr std::chrono::milliseconds kPatienceForParts{100};

}  // namespace

Status SourceMount::send_memory(const std::string& name, const PageIndex& index) {
  const SourceNodePointer node = tree_.child(tree_.root(), name);
  if (!node || node->type != wire::NodeType::kFile) {
    return failure(ENOENT, "send memory to '" + name + "': no such file in this mount");
  }
  if (Status open = opened(node, true); !open) return open;
  const Status sent = without_exceptions([&] { return send_memory(node, index); });
  if (!sent) give_up(*node->checkpoint, sent.error());
  released(node, true);
  return sent;
}

Status SourceMount::send_memory(const SourceNodePointer& node, const PageIndex& index) {
  // Zero pages are not sent: they stay holes, which read as zeros.
  node->writer->set_size_bytes(index.memory_bytes);
  MemoryReader reader(index);
  std::vector<std::span<const std::byte>> parts;
  SlotLease lease;
  while (!reader.at_end()) {
    if (!lease) {
      auto waited = wait_for_slot(*node->checkpoint, [] { return false; });
      if (!waited) return failure(waited.error());
      lease = std::move(*waited);
    }
    const uint64_t offset = reader.offset();
    const std::span<std::byte> slot = lease.payload();
    const auto filled = reader.next(slot);
    if (!filled) return failure(filled.error());
    find_nonzero(slot.first(*filled), parts);
    // A slot is one chunk: the parts behind the first move to slots of their own.
    while (parts.size() > 1) {
      const std::span<const std::byte> part = parts.back();
      SlotLease another = pool_->acquire(kPatienceForParts);
      if (!another) break;
      const std::span<std::byte> copy = another.payload().first(part.size());
      std::memcpy(copy.data(), part.data(), copy.size());
      const auto distance = static_cast<uint64_t>(part.data() - slot.data());
      if (Status sent = send_part(node, std::move(another), copy, offset + distance); !sent) {
        return sent;
      }
      parts.pop_back();
    }
    if (parts.empty()) continue;
    const auto distance = static_cast<uint64_t>(parts.front().data() - slot.data());
    const auto end = static_cast<size_t>(parts.back().data() + parts.back().size() - slot.data());
    const std::span<std::byte> rest = slot.subspan(distance, end - distance);
    if (Status sent = send_part(node, std::move(lease), rest, offset + distance); !sent) {
      return sent;
    }
  }
  return {};
}

Status SourceMount::send_part(const SourceNodePointer& node, SlotLease lease,
                              std::span<const std::byte> bytes, uint64_t offset) {
  CutChunks cut;
  if (node->writer->adopt(std::move(lease), bytes, offset, cut)) flusher_.watch(node->writer);
  cut.announce(*node->checkpoint->outlet);
  return node->checkpoint->status();
}

}  // namespace ppmr
