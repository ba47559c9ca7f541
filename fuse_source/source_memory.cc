// Sends the memory of processes as the content of a checkpoint that is one file.
#include "fuse_source/source_mount.h"

namespace ppmr {

Status SourceMount::send_memory(const std::string& name, const FrozenMemory& memory) {
  const SourceNodePointer node = tree_.child(tree_.root(), name);
  if (!node || node->type != wire::NodeType::kFile) {
    return failure(ENOENT, "send memory to '" + name + "': no such file in this mount");
  }
  if (Status open = opened(node, true); !open) return open;
  const MemorySlots slots{*pool_, transfers_, lent_slots_,
                          [this](const SourceCheckpoint& checkpoint, const Interrupted& ends) {
                            return wait_for_slot(checkpoint, ends);
                          },
                          [this] { return stopping_.load(); }};
  Status sent = without_exceptions([&] { return send_frozen_memory(slots, node, memory); });
  // Drain now: the seal has a time limit, and a pool full of bytes may take longer.
  if (sent && memory.arrives) sent = node->writer->drain(slots.mount_ends);
  // EBUSY means that another request sends this memory; it continues.
  if (!sent && sent.error().errno_value != EBUSY) {
    give_up(*node->checkpoint, sent.error());
    set_patience(*node->checkpoint, {});
  }
  released(node, true);
  return sent;
}

uint64_t SourceMount::written_bytes(const SourceNode& node) {
  // During a transfer the size of the file does not show this number: the last block may be sent
  // first.
  const auto taken = transfers_.taken_bytes(node.id);
  return taken ? *taken : node.writer->size_bytes();
}

// Keeps early wants only for checkpoints that consist of one file: memory is sent only to these.
void SourceMount::bytes_wanted(uint64_t node, uint64_t offset, uint64_t length) {
  transfers_.want({node, offset, length}, [this, node] {
    const SourceNodePointer top = tree_.find_top(node);
    return top && top->type == wire::NodeType::kFile;
  });
}

}  // namespace ppmr
