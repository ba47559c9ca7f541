// Receives FUSE requests straight into slots of the pool, so that the payload of a write is in
// registered memory, page-aligned, before anybody has looked at the request.
//
// When no slot is free for a moment, requests go to spare buffers instead: a full pool makes
// writers wait (they need a slot), but not `ls`.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "mount/request_loop.h"

namespace ppmr {

// Threads: any.
class SlotBuffers final : public RequestBuffers {
 public:
  explicit SlotBuffers(BufferPool& pool) : pool_(pool), lent_(pool.slot_count()) {}

  std::span<std::byte> take() override;
  void give_back(std::span<std::byte> buffer) override;

  // The lease of the slot in which `payload` was received; empty if it was a spare buffer. To be
  // called by the thread that processes the request.
  SlotLease adopt(const void* payload);

  // Until the mount's limits are agreed on, requests may be longer than a slot.
  void set_ready() { ready_ = true; }

 private:
  BufferPool& pool_;
  std::vector<SlotLease> lent_;  // by slot; an entry is its request's thread's
  std::atomic<bool> ready_ = false;
  HeapRequestBuffers spare_;
};

}  // namespace ppmr
