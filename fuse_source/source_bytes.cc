// The bytes of files: the way from a write request to a chunk in flight, and the way back from the
// target when the source reads.
#include <algorithm>
#include <cstring>
#include <functional>

#include "fuse_source/source_mount.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The interval at which a writer that waits for a slot checks whether its session has failed or the
// writing process is being killed.
constexpr std::chrono::milliseconds kSlotCheckInterval{100};

}  // namespace

Status SourceMount::opened(const SourceNodePointer& node, bool for_writing, bool is_new) {
  const SourceCheckpoint& checkpoint = *node->checkpoint;
  bool size_is_open_again = false;
  {
    MutexLock lock(tree_.mutex());
    // Checks the state and counts the writer under one lock, so that a checkpoint that is being
    // sealed gets no new writer.
    if (for_writing && checkpoint.state != CheckpointState::kOpen) return sealed_failure();
    if (!node->linked && node->open_handles == 0) {
      return failure(ESTALE, "open file " + std::to_string(node->id) + ": it was removed");
    }
    ++node->open_handles;
    if (for_writing) {
      size_is_open_again = ++node->open_writers == 1 || node->closing_writers > 0;
      ++node->writers_so_far;
    }
  }
  Status sent = for_writing ? checkpoint.status() : Status{};
  if (sent && size_is_open_again && !is_new) {
    // Another thread may be sending `Closed` for this file now: the lock makes this message follow
    // it.
    MutexLock order(attribute_changes_);
    sent = checkpoint.outlet->send(wire::OpenedForWrite{node->id});
  }
  if (!sent) {
    MutexLock lock(tree_.mutex());
    if (for_writing) --node->open_writers;
    tree_.close_handle_locked(node);
  }
  return sent;
}

void SourceMount::released(const SourceNodePointer& node, bool for_writing) {
  bool last_writer = false;
  bool ended = false;
  uint64_t writers_so_far = 0;
  {
    MutexLock lock(tree_.mutex());
    last_writer = for_writing && ++node->closing_writers == node->open_writers;
    writers_so_far = node->writers_so_far;
  }
  // If this throws, the checkpoint fails, and the handle still counts as closed.
  if (last_writer) {
    const Status closed = without_exceptions([&]() -> Status {
      close_for_writing(node, writers_so_far);
      return {};
    });
    if (!closed) node->checkpoint->error->set(closed.error());
  }
  {
    MutexLock lock(tree_.mutex());
    if (for_writing) {
      --node->closing_writers;
      --node->open_writers;
    }
    // The source sends Forget only for an open checkpoint: a sealed checkpoint belongs to the
    // target.
    ended = tree_.close_handle_locked(node) && node->checkpoint->state == CheckpointState::kOpen;
  }
  writer_closed_.notify_all();
  if (ended) forget_file(node);
}

// The target frees the file's memory, so none of the file's bytes may be in flight.
void SourceMount::forget_file(const SourceNodePointer& node) {
  if (!node->writer->drain([this] { return stopping_.load(); })) return;
  (void)node->checkpoint->outlet->send(wire::Forget{node->id});
}

void SourceMount::close_for_writing(const SourceNodePointer& node, uint64_t writers_so_far) {
  // The target treats a closed file as complete, apart from announced bytes in flight. So the
  // announcements must precede the close.
  node->writer->flush();
  node->writer->stream().await_announced();
  // A later change of attributes or size also takes this lock, so its message follows the close.
  MutexLock order(attribute_changes_);
  const uint64_t size_bytes = node->writer->size_bytes();
  wire::Attributes attributes;
  {
    MutexLock lock(tree_.mutex());
    // The close of the new writer will send `Closed`.
    if (node->writers_so_far != writers_so_far) return;
    attributes = node->attributes;
  }
  (void)node->checkpoint->outlet->send(wire::Closed{node->id, size_bytes, attributes});
}

Result<SlotLease> SourceMount::wait_for_slot(const SourceCheckpoint& checkpoint,
                                             const Interrupted& interrupted) {
  const auto began_at = std::chrono::steady_clock::now();
  Error error;
  const auto give_up = [&] {
    // As long as the target releases slots, this writer will get one in its turn. So each release
    // restarts the writer's timeout.
    const auto progress_at = std::max(began_at, pool_->last_release());
    if (auto status = checkpoint.status(); !status) {
      error = status.error();
    } else if (stopping_) {
      error = {EIO, "write: the mount is ending"};
    } else if (interrupted()) {
      error = {EINTR, "write: interrupted while waiting for a free slot"};
    } else if (const auto patience =
                   std::max(options_.sender.peer_timeout, checkpoint.patience.load());
               std::chrono::steady_clock::now() - progress_at >= patience) {
      error = {EIO, "write: no slot became free for " + std::to_string(patience.count()) +
                        " ms: the target does not accept more"};
    } else {
      return false;
    }
    return true;
  };
  checkpoint.outlet->push();  // chunks that are still being gathered also occupy slots
  SlotLease lease = pool_->acquire(kSlotCheckInterval, std::ref(give_up));
  if (!lease) return failure(std::move(error));
  return lease;
}

Result<size_t> SourceMount::write(const SourceNodePointer& node, std::span<const std::byte> bytes,
                                  uint64_t offset, const Interrupted& interrupted, CutChunks& cut) {
  const SourceCheckpoint& checkpoint = *node->checkpoint;
  if (auto status = checkpoint.status(); !status) return failure(status.error());
  if (offset > uint64_t{INT64_MAX} - bytes.size()) return failure(EFBIG, "write: offset too large");
  if (!node->writer->append(bytes, offset, cut)) {
    SlotLease lease = buffers_.adopt(bytes.data());
    if (!lease) {
      const KeptBytes kept = buffers_.keep(bytes);
      bytes = kept.bytes();
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
  MutexLock lock(tree_.mutex());
  node->attributes.mtime_ns = node->ctime_ns = now_ns();
  return bytes.size();
}

// Called for a checkpoint that has lost bytes. This mount then accepts no more writes to the
// checkpoint, and the target marks it as failed.
void SourceMount::give_up(const SourceCheckpoint& checkpoint, const Error& error) {
  checkpoint.error->set(error);
  (void)checkpoint.outlet->send(wire::Abandon{checkpoint.top_node, error.message.substr(0, 512)});
}

Status SourceMount::drain_chunks(const SourceNodePointer& node, const Interrupted& interrupted) {
  return node->writer->drain([&] { return stopping_ || interrupted(); });
}

Status SourceMount::drain(const SourceNodePointer& node, const Interrupted& interrupted) {
  const uint64_t changes = node->changes_sent;
  if (auto drained = drain_chunks(node, interrupted); !drained) return drained;
  // A verified chunk does not show whether the target has applied truncations and holes, so ask the
  // target. Also ask for an empty file: it has no chunk that would show that the target has its
  // name.
  const bool applied = node->changes_applied >= changes && node->writer->size_bytes() > 0;
  if (applied || stopping_) return {};
  const Interrupted ending = [&] { return stopping_ || interrupted(); };
  if (auto waited = node->checkpoint->outlet->await_applied(node->id, ending); !waited) {
    return waited;
  }
  node->changes_applied = changes;
  return {};
}

Result<std::vector<std::byte>> SourceMount::read(const SourceNodePointer& node, uint64_t offset,
                                                 size_t bytes_max, const Interrupted& interrupted) {
  const uint64_t size_bytes = node->writer->size_bytes();
  if (offset >= size_bytes) return std::vector<std::byte>();
  // The buffer is no larger than the rest of the file: allocating a megabyte for a small file would
  // take longer than reading it.
  std::vector<std::byte> bytes(std::min<uint64_t>(bytes_max, size_bytes - offset));
  if (auto drained = drain_chunks(node, interrupted); !drained) return failure(drained.error());
  const auto count = node->checkpoint->outlet->read_back(node->id, offset, bytes, interrupted);
  if (!count) return failure(count.error());
  // A read is never short before the end of the file.
  if (*count < bytes.size())
    return failure(EIO, "read back file " + std::to_string(node->id) + ": the target returned " +
                            std::to_string(*count) + " of " + std::to_string(bytes.size()) +
                            " bytes");
  return bytes;
}

Status SourceMount::truncate(const SourceNodePointer& node, uint64_t size_bytes,
                             const Interrupted& interrupted) {
  if (size_bytes > uint64_t{INT64_MAX}) return failure(EFBIG, "truncate: size too large");
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  if (size_bytes == node->writer->size_bytes()) return {};
  if (auto drained = drain_chunks(node, interrupted); !drained) return drained;
  MutexLock changes(changes_);
  // Check again: the checkpoint may have been sealed while this thread waited.
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  MutexLock order(attribute_changes_);
  node->writer->stream().reset_digest();
  node->writer->set_size_bytes(size_bytes);
  {
    MutexLock lock(tree_.mutex());
    node->attributes.mtime_ns = node->ctime_ns = now_ns();
  }
  const Status sent = node->checkpoint->outlet->send(wire::Truncate{node->id, size_bytes});
  ++node->changes_sent;
  return sent;
}

Status SourceMount::punch_hole(const SourceNodePointer& node, uint64_t offset,
                               uint64_t length_bytes, const Interrupted& interrupted) {
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  const uint64_t size_bytes = node->writer->size_bytes();
  if (offset >= size_bytes) return {};
  length_bytes = std::min(length_bytes, size_bytes - offset);
  if (auto drained = drain_chunks(node, interrupted); !drained) return drained;
  MutexLock changes(changes_);
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  node->writer->stream().reset_digest();
  const Status sent =
      node->checkpoint->outlet->send(wire::PunchHole{node->id, offset, length_bytes});
  ++node->changes_sent;
  return sent;
}

Status SourceMount::set_attributes(const SourceNodePointer& node,
                                   const wire::Attributes& attributes) {
  MutexLock changes(changes_);
  if (node->checkpoint) {
    if (auto status = check_writable(*node->checkpoint); !status) return status;
  }
  MutexLock order(attribute_changes_);
  {
    MutexLock lock(tree_.mutex());
    node->attributes = attributes;
    node->ctime_ns = now_ns();
  }
  if (!node->checkpoint) return {};  // the root, of which the target has no copy
  return node->checkpoint->outlet->send(wire::SetAttributes{node->id, attributes});
}

}  // namespace ppmr
