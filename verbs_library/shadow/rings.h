// The requests that are posted to the two queues of a queue pair. The library gives the device the
// address of a slot as the identifier of each request. So a completion leads to its slot, its queue
// and the program's identifier without a look-up. This works even for a failed completion, in which
// only the identifier is valid.
//
// A ring outlives its queue pair until no completion can refer to it any more (Cq::retired).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "verbs_library/shadow/shared_receives.h"

namespace ppmr::verbs {

// The low bits of an identifier. The other bits are the address of a slot, which is a multiple of
// 8. Without these bits it is a slot of a send ring; with kReceiveBit, of a receive ring; with
// both, of a shared receive queue.
inline constexpr uint64_t kReceiveBit = 1;
inline constexpr uint64_t kSharedBit = 2;

struct Ring {
  explicit Ring(uint32_t slots_min) : mask(std::bit_ceil(slots_min) - 1) {}
  virtual ~Ring() = default;

  uint32_t shown_qpn = 0;   // constant after construction
  uint32_t shown_peer = 0;  // the peer's number; 0: not connected, and programs see the sender's
  const uint64_t mask;
  uint64_t posted = 0;                   // guarded by the lock of the queue
  std::atomic<uint64_t> done = 0;        // written under the lock of the completion queue
  std::atomic<bool> has_failed = false;  // a completion had an error
};

struct SendRing;

struct SendSlot {
  uint64_t shown_id = 0;
  SendRing* ring = nullptr;
  uint64_t number = 0;
  bool is_marker = false;  // ends a drained queue; programs do not see it
};

struct SendRing : Ring {
  explicit SendRing(uint32_t slots_min) : Ring(slots_min), slots(new SendSlot[mask + 1]) {
    for (uint64_t i = 0; i <= mask; ++i) slots[i].ring = this;
  }

  // Both are guarded by the lock of the queue.
  uint64_t signalled = 0;  // `posted` after the last request that has a completion
  uint64_t messages = 0;   // number of requests that use up a receive of the peer
  std::unique_ptr<SendSlot[]> slots;
};

struct ReceiveRing;

struct ReceiveSlot {
  uint64_t shown_id = 0;
  ReceiveRing* ring = nullptr;
  uint64_t number = 0;
  int piece_count = 0;
};

struct ReceiveRing : Ring {
  ReceiveRing(uint32_t slots_min, uint32_t pieces_max)
      : Ring(slots_min),
        pieces_max(pieces_max),
        slots(new ReceiveSlot[mask + 1]),
        pieces(new ibv_sge[(mask + 1) * pieces_max]) {
    for (uint64_t i = 0; i <= mask; ++i) slots[i].ring = this;
  }
  ibv_sge* pieces_of(uint64_t number) { return &pieces[(number & mask) * pieces_max]; }

  const uint32_t pieces_max;
  std::unique_ptr<ReceiveSlot[]> slots;
  std::unique_ptr<ibv_sge[]> pieces;  // with the keys that programs know
};

// The receive rings of queue pairs that have a shared receive queue. Key: the real number of the
// queue pair, which even a failed completion contains.
using Receivers = std::unordered_map<uint32_t, std::shared_ptr<ReceiveRing>>;

inline bool translate_shared(ibv_wc& completion, const Receivers& receivers) {
  auto* slot = reinterpret_cast<SharedSlot*>(completion.wr_id & ~(kReceiveBit | kSharedBit));
  completion.wr_id = slot->shown_id;
  slot->owner->release(*slot);
  const auto found = receivers.find(completion.qp_num);
  // The program has destroyed the queue pair, so it must get no further completions of it.
  if (found == receivers.end()) return false;
  ReceiveRing& ring = *found->second;
  completion.qp_num = ring.shown_qpn;
  if (ring.shown_peer) completion.src_qp = ring.shown_peer;
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
    ring.has_failed.store(true, std::memory_order_relaxed);
  ring.done.fetch_add(1, std::memory_order_release);
  return true;
}

// Turns a completion of the device into one for the program. Returns false if the program must not
// see it. The caller holds the lock of the completion queue.
inline bool translate(ibv_wc& completion, const Receivers& receivers) {
  if (completion.wr_id & kReceiveBit) {
    if (completion.wr_id & kSharedBit) return translate_shared(completion, receivers);
    auto* slot = reinterpret_cast<ReceiveSlot*>(completion.wr_id & ~kReceiveBit);
    ReceiveRing& ring = *slot->ring;
    completion.wr_id = slot->shown_id;
    completion.qp_num = ring.shown_qpn;
    if (ring.shown_peer) completion.src_qp = ring.shown_peer;
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
      ring.has_failed.store(true, std::memory_order_relaxed);
    ring.done.store(slot->number + 1, std::memory_order_release);
    return true;
  }
  auto* slot = reinterpret_cast<SendSlot*>(completion.wr_id);
  SendRing& ring = *slot->ring;
  const bool is_shown = !slot->is_marker;
  completion.wr_id = slot->shown_id;
  completion.qp_num = ring.shown_qpn;
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
    ring.has_failed.store(true, std::memory_order_relaxed);
  // Requests of one queue complete in order. So all earlier requests, which may have no completion
  // of their own, are done, too.
  ring.done.store(slot->number + 1, std::memory_order_release);
  return is_shown;
}

}  // namespace ppmr::verbs
