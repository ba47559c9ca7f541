// Receives FUSE requests straight into slots of the pool, so that the payload of a write is in
// registered memory, page-aligned, before anybody has looked at the request.
//
// When no slot is free for a moment, requests go to spare buffers instead: a full pool makes
// writers wait (they need a slot), but not `ls`.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "mount/fuse/request_loop.h"

namespace ppmr {

// Threads: any.
class SlotBuffers final : public RequestBuffers {
 public:
  explicit SlotBuffers(BufferPool& pool) : pool_(pool), borrowers_(pool.slot_count()) {}

  std::unique_ptr<RequestBuffer> make() override;

  // The lease of the slot in which `payload` was received; empty if it was a spare buffer. To be
  // called by the worker that processes the request.
  SlotLease adopt(const void* payload);

  // Until the mount's limits are agreed on, requests may be longer than a slot.
  void set_ready() { ready_ = true; }

 private:
  class Buffer;

  BufferPool& pool_;
  // By slot: the worker that received its last request there. A slot that was adopted may come back
  // and be borrowed by another worker before the first has finished its request, so the lease
  // itself lies with the worker.
  std::vector<Buffer*> borrowers_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> stalled_ = false;  // the last worker that wanted a slot got none
};

}  // namespace ppmr
