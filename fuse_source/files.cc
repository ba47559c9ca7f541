// Files: from a write request to a chunk on its way, and back from the target.
#include <cstring>

#include "fuse_source/source_mount.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// How often a writer that waits for a slot looks up: has its session failed, was it killed?
constexpr std::chrono::milliseconds kSlotWait{50};

}  // namespace

Status SourceMount::opened(const SourceNodePointer& node, bool for_writing) {
  const SourceCheckpoint& checkpoint = *node->checkpoint;
  bool size_is_open_again = false;
  {
    std::lock_guard lock(tree_.mutex());
    // Seen and counted at once: what is being sealed gets no writer.
    if (for_writing && checkpoint.state != CheckpointState::kOpen) return sealed_failure();
    ++node->open_handles;
    if (for_writing) {
      size_is_open_again = ++node->open_writers == 1 || node->closing_writers > 0;
      ++node->writers_so_far;
    }
  }
  Status told = for_writing ? checkpoint.status() : Status{};
  if (told && size_is_open_again) {
    // Behind a close that is just being told. (A new file is told as being open; saying it twice
    // does no harm.)
    std::lock_guard order(attribute_changes_);
    told = checkpoint.outlet->send(wire::OpenedForWrite{node->id});
  }
  if (!told) {
    std::lock_guard lock(tree_.mutex());
    --node->open_handles;
    if (for_writing) --node->open_writers;
  }
  return told;
}

void SourceMount::released(const SourceNodePointer& node, bool for_writing) {
  bool last_writer = false;
  bool forgotten = false;
  uint64_t writers_so_far = 0;
  {
    std::lock_guard lock(tree_.mutex());
    last_writer = for_writing && ++node->closing_writers == node->open_writers;
    writers_so_far = node->writers_so_far;
  }
  // The close comes after every byte, so that nobody at the target takes the file for complete.
  if (last_writer) close_for_writing(node, writers_so_far);
  {
    std::lock_guard lock(tree_.mutex());
    if (for_writing) {
      --node->closing_writers;
      --node->open_writers;
    }
    // What is sealed belongs to the target.
    forgotten = --node->open_handles == 0 && !node->linked &&
                node->checkpoint->state == CheckpointState::kOpen;
  }
  writer_closed_.notify_all();
  if (forgotten) (void)node->checkpoint->outlet->send(wire::Forget{node->id});
}

void SourceMount::close_for_writing(const SourceNodePointer& node, uint64_t writers_so_far) {
  Outlet& outlet = *node->checkpoint->outlet;
  if (auto drained = node->writer->drain([this] { return stopping_.load(); }); !drained) {
    spdlog::warn("close of file {}: {}", node->id, drained.error().message);
    // At the end of the mount nobody waits for what is still under way, so nobody may seal it.
    node->checkpoint->error->set(drained.error());
    return;
  }
  // What changes the attributes or the size right behind the close is told behind it, too.
  std::lock_guard order(attribute_changes_);
  const uint64_t size_bytes = node->writer->size_bytes();
  wire::Attributes attributes;
  {
    std::lock_guard lock(tree_.mutex());
    if (node->writers_so_far != writers_so_far) return;  // the next one tells of its close
    attributes = node->attributes;
  }
  (void)outlet.send(wire::SetAttributes{node->id, attributes});
  (void)outlet.send(wire::Closed{node->id, size_bytes});
}

Result<SlotLease> SourceMount::wait_for_slot(const SourceCheckpoint& checkpoint,
                                             const Interrupted& interrupted) {
  const auto give_up_at = std::chrono::steady_clock::now() + options_.sender.peer_timeout;
  for (;;) {
    if (SlotLease lease = pool_->acquire(kSlotWait)) return lease;
    if (auto status = checkpoint.status(); !status) return failure(status.error());
    if (stopping_) return failure(EIO, "the mount is being ended");
    if (interrupted()) return failure(EINTR, "interrupted while waiting for a free slot");
    if (std::chrono::steady_clock::now() >= give_up_at) {
      return failure(EIO, "no slot became free for " +
                              std::to_string(options_.sender.peer_timeout.count()) +
                              " ms: the target does not take more");
    }
  }
}

Status SourceMount::write(const SourceNodePointer& node, std::span<const std::byte> bytes,
                          uint64_t offset, const Interrupted& interrupted, CutChunks& cut) {
  const SourceCheckpoint& checkpoint = *node->checkpoint;
  if (auto status = checkpoint.status(); !status) return status;
  if (offset > uint64_t{INT64_MAX} - bytes.size()) return failure(EFBIG, "write: offset too large");
  if (!node->writer->append(bytes, offset, cut)) {
    SlotLease lease = buffers_.adopt(bytes.data());
    if (!lease) {  // the request came to a spare buffer
      auto waited = wait_for_slot(checkpoint, interrupted);
      if (!waited) {
        if (waited.error().errno_value != EINTR) give_up(checkpoint, waited.error());
        return failure(waited.error());
      }
      lease = std::move(*waited);
      std::memcpy(lease.payload().data(), bytes.data(), bytes.size());
      bytes = lease.payload().first(bytes.size());
    }
    if (node->writer->adopt(std::move(lease), bytes, offset, cut)) flusher_.watch(node->writer);
  }
  std::lock_guard lock(tree_.mutex());
  node->attributes.mtime_ns = node->ctime_ns = now_ns();
  return {};
}

// Bytes are lost: nothing more of the checkpoint is taken, and the target is told.
void SourceMount::give_up(const SourceCheckpoint& checkpoint, const Error& error) {
  checkpoint.error->set(error);
  (void)checkpoint.outlet->send(wire::Abandon{checkpoint.top_node, error.message.substr(0, 512)});
}

Status SourceMount::drain(const SourceNodePointer& node, const Interrupted& interrupted) {
  const Interrupted ending = [&] { return stopping_ || interrupted(); };
  auto drained = node->writer->drain(ending);
  // Without bytes nothing was waited for, yet the name is to be there.
  if (drained && node->writer->size_bytes() == 0 && !stopping_) {
    return node->checkpoint->outlet->await_applied(node->id, ending);
  }
  return drained;
}

Result<std::vector<std::byte>> SourceMount::read(const SourceNodePointer& node, uint64_t offset,
                                                 size_t bytes_max, const Interrupted& interrupted) {
  const uint64_t size_bytes = node->writer->size_bytes();
  if (offset >= size_bytes) return std::vector<std::byte>();
  // As much as there is: a megabyte of room for a small file takes longer than all else.
  std::vector<std::byte> bytes(std::min<uint64_t>(bytes_max, size_bytes - offset));
  if (auto drained = drain(node, interrupted); !drained) return failure(drained.error());
  const auto count = node->checkpoint->outlet->read_back(node->id, offset, bytes, interrupted);
  if (!count) return failure(count.error());
  // Never a short read before the end of the file.
  if (*count < bytes.size()) return failure(EIO, "read back: the target has fewer bytes");
  return bytes;
}

Status SourceMount::truncate(const SourceNodePointer& node, uint64_t size_bytes,
                             const Interrupted& interrupted) {
  if (size_bytes > uint64_t{INT64_MAX}) return failure(EFBIG, "truncate: too large");
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  if (size_bytes == node->writer->size_bytes()) return {};
  if (auto drained = drain(node, interrupted); !drained) return drained;
  std::lock_guard changes(changes_);  // it may have been sealed meanwhile
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  std::lock_guard order(attribute_changes_);
  node->writer->stream().reset_digest();
  node->writer->set_size_bytes(size_bytes);
  {
    std::lock_guard lock(tree_.mutex());
    node->attributes.mtime_ns = node->ctime_ns = now_ns();
  }
  return node->checkpoint->outlet->send(wire::Truncate{node->id, size_bytes});
}

Status SourceMount::punch_hole(const SourceNodePointer& node, uint64_t offset,
                               uint64_t length_bytes, const Interrupted& interrupted) {
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  const uint64_t size_bytes = node->writer->size_bytes();
  if (offset >= size_bytes) return {};
  length_bytes = std::min(length_bytes, size_bytes - offset);
  if (auto drained = drain(node, interrupted); !drained) return drained;
  std::lock_guard changes(changes_);
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  node->writer->stream().reset_digest();
  return node->checkpoint->outlet->send(wire::PunchHole{node->id, offset, length_bytes});
}

Status SourceMount::set_attributes(const SourceNodePointer& node,
                                   const wire::Attributes& attributes) {
  std::lock_guard changes(changes_);
  if (node->checkpoint) {
    if (auto status = check_writable(*node->checkpoint); !status) return status;
  }
  std::lock_guard order(attribute_changes_);
  {
    std::lock_guard lock(tree_.mutex());
    node->attributes = attributes;
    node->ctime_ns = now_ns();
  }
  if (!node->checkpoint) return {};  // the root is ours alone
  return node->checkpoint->outlet->send(wire::SetAttributes{node->id, attributes});
}

}  // namespace ppmr
