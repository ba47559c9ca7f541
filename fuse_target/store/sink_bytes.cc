// The Sink's calls about bytes. The calls for every chunk take the file table's lock (shared) and
// the file's mutex, both for a short time.
#include <algorithm>
#include <cstring>

#include "fuse_target/store/image_tree.h"

namespace ppmr {

Result<StoredNodePointer> ImageTree::changeable_file(SessionId session, uint64_t node) {
  MutexLock lock(mutex_);
  auto found = changeable_locked(session, node);
  if (!found || (*found)->is_file()) return found;
  const Error error{EISDIR, "change the bytes of '" + (*found)->name + "': not a file"};
  lock.unlock();
  fail((*found)->checkpoint, error);
  return failure(error);
}

Status ImageTree::refuse(const StoredNodePointer& node, const std::string& operation,
                         const std::string& why) {
  MutexLock lock(mutex_);
  const std::string name = node->name;
  lock.unlock();
  const Error error{EINVAL, operation + " '" + name + "' " + why};
  fail(node->checkpoint, error);
  return failure(error);
}

Status ImageTree::truncate(SessionId session, const wire::Truncate& message) {
  auto node = changeable_file(session, message.node);
  if (!node) return failure(node.error());
  if (message.size_bytes > uint64_t{INT64_MAX}) {
    return refuse(*node, "truncate",
                  "to " + std::to_string(message.size_bytes) + " bytes: the size is out of range");
  }
  (*node)->file->truncate(message.size_bytes);
  parking_.changed((*node)->file.get());
  return {};
}

Status ImageTree::punch_hole(SessionId session, const wire::PunchHole& message) {
  auto node = changeable_file(session, message.node);
  if (!node) return failure(node.error());
  if (message.offset > uint64_t{INT64_MAX}) {
    return refuse(*node, "make a hole in",
                  "at offset " + std::to_string(message.offset) + ": the offset is out of range");
  }
  (*node)->file->punch_hole(message.offset, message.length_bytes);
  return {};
}

Status ImageTree::zeros(SessionId session, const wire::Zeros& message) {
  auto node = changeable_file(session, message.node);
  if (!node) return failure(node.error());
  if (message.offset > uint64_t{INT64_MAX}) {
    return refuse(*node, "store zeros in",
                  "at offset " + std::to_string(message.offset) + ": the offset is out of range");
  }
  (*node)->file->zeros(message.offset, message.length_bytes);
  parking_.changed((*node)->file.get());
  return {};
}

Status ImageTree::opened_for_write(SessionId session, const wire::OpenedForWrite& message) {
  auto node = changeable_file(session, message.node);
  if (!node) return failure(node.error());
  (*node)->file->open_for_write();
  return {};
}

Status ImageTree::closed(SessionId session, const wire::Closed& message) {
  auto node = changeable_file(session, message.node);
  if (!node) return failure(node.error());
  if (message.size_bytes > uint64_t{INT64_MAX}) {
    return refuse(*node, "close",
                  "at " + std::to_string(message.size_bytes) + " bytes: the size is out of range");
  }
  (*node)->file->close(message.size_bytes);
  bool completed = false;
  {
    MutexLock lock(mutex_);
    set_attributes_locked(**node, message.attributes);
    completed =
        closes_checkpoint_locked(**node) && (*node)->checkpoint->advance(StoredState::kComplete);
  }
  parking_.changed((*node)->file.get());
  if (completed) state_changed(*(*node)->checkpoint);
  return {};
}

// ---- Chunks ------------------------------------------------------------------------------------

Status ImageTree::announced(NodeKey file, uint64_t offset, uint32_t length) {
  const auto found = record(file);
  if (!found)
    return failure(ENOENT, "store a chunk of node " + std::to_string(file.node) +
                               ": the target does not know this node");
  const auto& checkpoint = found->checkpoint;
  if (checkpoint->failed()) return failure(checkpoint->error());
  if (!checkpoint->takes_changes())
    return failure(EROFS, "store a chunk: its checkpoint is sealed");
  const Status status = found->file->announce(offset, length);
  if (!status) fail(checkpoint, status.error());
  return status;
}

Result<Landing> ImageTree::reserve(NodeKey file, uint64_t offset, uint32_t length) {
  const auto found = record(file);
  if (!found)
    return failure(ENOENT, "store a chunk of node " + std::to_string(file.node) +
                               ": the target does not know this node");
  // A failed checkpoint cannot be read: take no memory for it.
  if (found->checkpoint->failed()) return failure(found->checkpoint->error());
  Landing landing;
  landing.file = file;
  landing.offset = offset;
  landing.length = length;
  for (;;) {
    const Status reserved = found->file->reserve(landing);
    if (reserved) return landing;
    const bool is_full = reserved.error().errno_value == ENOSPC;
    if (!is_full || !storage_.make_room || !storage_.make_room()) return failure(reserved.error());
  }
}

Status ImageTree::land(const Landing& landing, uint64_t chunk_digest) {
  const auto found = record(landing.file);
  if (!found) {
    ImageFile::release(storage_.memory, landing);
    return failure(ENOENT, "store a chunk: its file was removed");
  }
  const Status status = found->file->land(landing, chunk_digest);
  if (!status) {
    fail(found->checkpoint, status.error());
    return failure(found->checkpoint->error());
  }
  landed_bytes_ += landing.length;
  found->checkpoint->landed_bytes += landing.length;
  parking_.changed(found->file.get());
  return {};
}

void ImageTree::abandon(const Landing& landing, const Error& error) {
  const auto found = record(landing.file);
  if (!found) return ImageFile::release(storage_.memory, landing);
  // This comes first: if the bytes replace other bytes, readers must not see the bytes that have
  // arrived.
  fail(found->checkpoint, error);
  found->file->abandon(landing);
}

void ImageTree::abandon_announced(NodeKey file, uint64_t offset, uint32_t length,
                                  const Error& error) {
  const auto found = record(file);
  if (!found) return;
  found->file->retract(offset, length);
  fail(found->checkpoint, error);
}

Result<size_t> ImageTree::read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) {
  const auto found = record(file);
  if (!found)
    return failure(ENOENT, "read back node " + std::to_string(file.node) +
                               ": the target does not know this node");
  if (offset > uint64_t{INT64_MAX}) {
    return failure(EINVAL, "read back node " + std::to_string(file.node) + " at offset " +
                               std::to_string(offset) + ": the offset is out of range");
  }
  ReadPlan plan;
  if (auto planned = found->file->read_back(offset, bytes.size(), plan); !planned) {
    return failure(planned.error());
  }
  if (auto ready = plan.make_ready(); !ready) return failure(ready.error());
  if (found->checkpoint->failed()) return failure(EIO, "read back: the checkpoint has failed");
  for (const iovec& buffer : plan.buffers()) {
    std::memcpy(bytes.data(), buffer.iov_base, buffer.iov_len);
    bytes = bytes.subspan(buffer.iov_len);
  }
  return plan.size_bytes();
}

wire::Space ImageTree::space() const {
  const StoreCounters counters = storage_.memory.counters();
  wire::Space space{counters.limit_bytes,
                    counters.limit_bytes - std::min(counters.limit_bytes,
                                                    counters.used_bytes + counters.charged_bytes)};
  if (storage_.room_to_make) space.free_bytes += storage_.room_to_make();
  if (storage_.spill != nullptr) {
    space.free_bytes += storage_.spill->free_bytes();
    space.total_bytes += storage_.spill->free_bytes() + storage_.spill->spilled_bytes();
  }
  return space;
}

}  // namespace ppmr
