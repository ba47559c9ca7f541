// Receives FUSE requests directly into slots of the pool: the payload of a write is page-aligned in
// registered memory before the request is parsed.
//
// While no slot is free, requests go to spare buffers. A full pool therefore blocks writers, which
// need a slot, but not `ls`. The memory of spare buffers is bounded: the large writes that wait for
// a slot keep at most kKeptMaxBytes together, every other waiting write at most kKeptSmallBytes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "mount/request_loop.h"

namespace ppmr {

class SlotBuffers;

// The part of a write's bytes that stays in memory while the write waits for a slot. Move-only.
class KeptBytes {
 public:
  KeptBytes(KeptBytes&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), bytes_(other.bytes_) {}
  KeptBytes& operator=(KeptBytes&&) = delete;
  ~KeptBytes();
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  friend class SlotBuffers;
  KeptBytes(SlotBuffers* owner, std::span<const std::byte> bytes) : owner_(owner), bytes_(bytes) {}

  SlotBuffers* owner_;  // null: the bytes do not count towards kKeptMaxBytes
  std::span<const std::byte> bytes_;
};

// Threads: any thread may call any member.
class SlotBuffers final : public RequestBuffers {
 public:
  static constexpr size_t kKeptMaxBytes = size_t{32} << 20;
  static constexpr size_t kKeptSmallBytes = size_t{64} << 10;

  explicit SlotBuffers(BufferPool& pool) : pool_(pool), borrowers_(pool.slot_count()) {}

  std::unique_ptr<RequestBuffer> make() override;

  // Returns the lease of the slot that received `payload`, or an empty lease if a spare buffer
  // received it. Only the worker that processes the request may call this.
  SlotLease adopt(const void* payload);

  // Keeps the bytes of a write that arrived in a spare buffer and must wait for a slot. If the kept
  // bytes of all writes would exceed kKeptMaxBytes, keeps only the first kKeptSmallBytes: the write
  // becomes a short write.
  KeptBytes keep(std::span<const std::byte> bytes);

  // The operation `init` calls this after it has limited the length of requests. Before that a
  // request may be longer than a slot, so all requests go to spare buffers.
  void set_ready() { ready_ = true; }

 private:
  friend class KeptBytes;
  class Buffer;

  BufferPool& pool_;
  // For each slot, the buffer of the worker that last received a request into it. That buffer, not
  // this table, holds the lease: after adopt() the slot may be released, and leased by another
  // worker, before the first worker has finished its request.
  std::vector<Buffer*> borrowers_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> stalled_ = false;   // the last worker that waited for a slot got none
  std::atomic<size_t> kept_bytes_ = 0;  // the kept bytes of writes longer than kKeptSmallBytes
};

}  // namespace ppmr
