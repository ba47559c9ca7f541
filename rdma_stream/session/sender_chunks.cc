// The steps of a chunk at the source: announced, read by the target, released.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "rdma_stream/session/sender.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

std::span<std::byte> bytes_of(const Chunk& chunk) {
  return chunk.lease.payload().subspan(chunk.slot_offset, chunk.length);
}

}  // namespace

void Sender::announce(Chunk chunk) {
  // From here on the slot contains the ciphertext. The target may read it several times: it pulls a
  // chunk again after a fault, and also pulls an inline chunk for which it had no memory.
  auto check = pack(chunk);
  if (!check) {
    // The bytes are wiped. The session sends nothing more, and end_session() fails the chunk.
    spdlog::error("{}; ending the session with {}", check.error().message, connector_.target());
    channel_.fail(check.error());
  }
  announced_bytes_ += chunk.length;
  ++chunks_;
  const std::shared_ptr<FileStream> file = chunk.file;
  file->announce_in_turn(std::move(chunk), check.value_or(wire::ChunkCheck{}),
                         [this](Chunk next, const wire::ChunkCheck& next_check) {
                           announce_now(std::move(next), next_check);
                         });
}

// Compresses the chunk if --compress asks for it, and encrypts it into its slot.
Result<wire::ChunkCheck> Sender::pack(Chunk& chunk) {
  const std::span<std::byte> bytes = bytes_of(chunk);
  ChunkPlace place{chunk.file->node(), chunk.offset, chunk.length};
  chunk.slot_length = chunk.length;
  const bool may_compress =
      chunk.length > wire::kInlineMaxBytes && chunk.length <= wire::kCompressedMaxBytes;
  const CompressionMethod& method = options_.compression;
  if (!may_compress || method.kind == wire::Compression::kNone) {
    return protection_->protect(place, bytes, bytes);
  }
  const Compressor::Compressed compressed = compressor_.compress(method, bytes);
  if (compressed.bytes.empty()) return protection_->protect(place, bytes, bytes);
  const size_t length = compressed.bytes.size();
  chunk.slot_length = static_cast<uint32_t>(length);
  chunk.compression = place.compression = method.kind;
  const std::span<std::byte> rest = bytes.subspan(length);
  if (protection_->kind() != wire::Protection::kChecksum) {
    // Plaintext, which a peer could read by RDMA.
    std::fill(rest.begin(), rest.end(), std::byte{0});
  }
  return protection_->protect(place, compressed.bytes, bytes.first(length));
}

void Sender::announce_now(Chunk chunk, const wire::ChunkCheck& check) {
  const std::span<const std::byte> bytes = bytes_of(chunk).first(chunk.slot_length);
  wire::Announce message;
  message.node = chunk.file->node();
  message.offset = chunk.offset;
  message.length = chunk.length;
  message.slot = chunk.lease.index();
  message.generation = chunk.lease.generation();
  message.slot_offset = chunk.slot_offset;
  message.slot_length = chunk.slot_length;
  message.compression = chunk.compression;
  message.check = check;
  assert(message.length > 0 && message.slot_length > 0 && message.slot_length <= message.length &&
         "a chunk is longer in its slot than in its file");
  assert(uint64_t{message.slot_offset} + message.slot_length <= pool_.chunk_size_bytes() &&
         "a chunk ends behind its slot");
  const bool inlined = message.length <= wire::kInlineMaxBytes;
  std::optional<Error> closed;
  {
    MutexLock lock(slots_mutex_);
    closed = slots_closed_;
    if (!closed) {
      SlotEntry& entry = slots_[message.slot];
      assert(!entry.announced && entry.readers == 0 && !entry.chunk.lease &&
             "the slot is announced already");
      entry.check = message.check;
      entry.announced = true;
      entry.readers = inlined ? 1 : 0;  // the call of send() below reads the slot
      entry.chunk = std::move(chunk);
    }
  }
  if (closed) {
    chunk.lease.release();
    chunk.file->failed(chunk.turn, *closed);
    return;
  }
  // If send() fails, the session ends: end_session() then frees the slot and fails the chunk.
  if (inlined) {
    ++inline_chunks_;
    wire::AnnounceInline with_bytes;
    static_cast<wire::Announce&>(with_bytes) = message;
    (void)channel_.send_soon(with_bytes, bytes);
    end_read(message.slot);
  } else {
    (void)channel_.send(message);
  }
}

Result<std::span<const std::byte>> Sender::begin_read(const wire::ReadRequest& request) {
  channel_.note_received();
  MutexLock lock(slots_mutex_);
  if (request.slot >= slots_.size() || !slots_[request.slot].announced || slots_closed_) {
    return failure(EINVAL, "read request for slot " + std::to_string(request.slot) +
                               ": no chunk in flight there");
  }
  SlotEntry& entry = slots_[request.slot];
  const Chunk& chunk = entry.chunk;
  if (request.generation != chunk.lease.generation() || entry.release_due ||
      request.slot_offset < chunk.slot_offset ||
      uint64_t{request.slot_offset} + request.length >
          uint64_t{chunk.slot_offset} + chunk.slot_length) {
    return failure(EINVAL, "read request for slot " + std::to_string(request.slot) +
                               ": does not match the chunk in flight");
  }
  ++entry.readers;
  return chunk.lease.payload().subspan(request.slot_offset, request.length);
}

void Sender::end_read(uint32_t slot) {
  SlotEntry finished;
  {
    MutexLock lock(slots_mutex_);
    SlotEntry& entry = slots_[slot];
    assert(entry.announced && entry.readers > 0 && "more reads of a slot ended than began");
    if (--entry.readers > 0 || !entry.release_due) return;
    finished = std::exchange(entry, {});
  }
  complete(std::move(finished));
}

Status Sender::handle_release(const wire::Release& release) {
  SlotEntry finished;
  {
    MutexLock lock(slots_mutex_);
    if (release.slot >= slots_.size() || !slots_[release.slot].announced ||
        slots_[release.slot].release_due ||
        slots_[release.slot].chunk.lease.generation() != release.generation) {
      return failure(EPROTO, "the target released slot " + std::to_string(release.slot) +
                                 ", which is not in flight");
    }
    SlotEntry& entry = slots_[release.slot];
    entry.errno_value = release.errno_value;
    // This side may still read the slot, for two reasons. The send() of an inline chunk may not
    // have returned. Or the target has replaced a connection on which this side still sends the
    // chunk.
    if (entry.readers > 0) {
      entry.release_due = true;
    } else {
      finished = std::exchange(entry, {});
    }
  }
  if (finished.announced) complete(std::move(finished));
  return {};
}

void Sender::complete(SlotEntry entry) {
  Chunk& chunk = entry.chunk;
  const uint64_t digest = wire::chunk_digest(chunk.offset, chunk.length, entry.check);
  const uint32_t length = chunk.length;
  const uint32_t slot_length = chunk.slot_length;
  // Free the slot first: a caller that waits for the file may need one.
  chunk.lease.release();
  if (entry.errno_value == 0) {
    verified_bytes_ += length;
    verified_wire_bytes_ += slot_length;
    chunk.file->verified(chunk.turn, digest);
  } else if (entry.errno_value == ENOSPC) {
    chunk.file->failed(chunk.turn,
                       Error{ENOSPC, "the target " + connector_.target() +
                                         " is out of space: raise --memory-limit there, or give "
                                         "it a --spill-dir with free space"});
  } else if (channel_.failed()) {
    chunk.file->failed(chunk.turn, session_error());
  } else {
    chunk.file->failed(chunk.turn,
                       Error{EIO, "target " + connector_.target() + " could not store a chunk: " +
                                      std::string(std::strerror(entry.errno_value))});
  }
}

}  // namespace ppmr
