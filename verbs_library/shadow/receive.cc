#include "verbs_library/shadow/receive.h"

#include <algorithm>
#include <cerrno>

#include "verbs_library/shadow/completion.h"

namespace ppmr::verbs {
namespace {

constexpr size_t kBatch = 16;  // the most receives in one call to the device

// Copies a request into the ring.
void fill_slot(ReceiveRing& ring, const ibv_recv_wr& request) {
  ReceiveSlot& slot = ring.slots[ring.posted & ring.mask];
  slot.shown_id = request.wr_id;
  slot.number = ring.posted;
  slot.piece_count = request.num_sge;
  std::copy_n(request.sg_list, request.num_sge, ring.pieces_of(ring.posted));
  ++ring.posted;
}

// Posts the receives [first, end) of the ring, at most kBatch. Returns how many the device has
// taken.
size_t post_slots(Qp& qp, uint64_t first, uint64_t end, int& error) {
  ReceiveRing& ring = *qp.receives;
  ibv_recv_wr requests[kBatch];
  const size_t count = std::min<uint64_t>(end - first, kBatch);
  for (size_t i = 0; i < count; ++i) {
    ReceiveSlot& slot = ring.slots[(first + i) & ring.mask];
    ibv_recv_wr& request = requests[i];
    request.wr_id = reinterpret_cast<uint64_t>(&slot) | kReceiveBit;
    request.next = i + 1 < count ? &requests[i + 1] : nullptr;
    request.sg_list = ring.pieces_of(first + i);
    request.num_sge = slot.piece_count;
    if (!qp.local_keys->is_empty()) [[unlikely]] {
      ibv_sge* pieces = &qp.receive_pieces[i * ring.pieces_max];
      for (int piece = 0; piece < slot.piece_count; ++piece) {
        pieces[piece] = request.sg_list[piece];
        pieces[piece].lkey = qp.local_keys->real(pieces[piece].lkey);
      }
      request.sg_list = pieces;
    }
  }
  ibv_recv_wr* bad = nullptr;
  error = qp.real->context->ops.post_recv(qp.real, requests, &bad);
  if (error == 0) return count;
  return bad ? static_cast<size_t>(bad - requests) : 0;
}

}  // namespace

int post_receive(ibv_qp* qp_seen, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Qp& qp = shadow_of(qp_seen);
  if (qp.shared_receives()) {
    *bad = requests;
    return EINVAL;
  }
  const std::lock_guard guard(qp.receive_lock);
  ReceiveRing& ring = *qp.receives;
  while (requests) {
    const uint64_t first = ring.posted;
    int error = 0;
    ibv_recv_wr* next = requests;
    for (; next && ring.posted - first < kBatch; next = next->next) {
      const uint64_t waiting = ring.posted - ring.done.load(std::memory_order_acquire);
      if (next->num_sge > static_cast<int>(ring.pieces_max)) {
        error = EINVAL;
      } else if (waiting > ring.mask || waiting >= qp.init.cap.max_recv_wr) {
        error = ENOMEM;
      }
      if (error != 0) break;
      fill_slot(ring, *next);
    }
    if (!qp.keeps_receives && ring.posted != first) {
      int refused = 0;
      const size_t taken = post_slots(qp, first, ring.posted, refused);
      if (refused != 0) {
        ring.posted = first + taken;
        next = requests;
        for (size_t i = 0; i < taken; ++i) next = next->next;
        error = refused;
      }
    }
    requests = next;
    if (error != 0) {
      *bad = requests;
      return error;
    }
  }
  return 0;
}

void keep_receives(Qp& qp) {
  const std::lock_guard guard(qp.receive_lock);
  qp.keeps_receives = true;
}

int post_receives_again(Qp& qp) {
  if (qp.shared_receives()) return 0;
  const std::lock_guard guard(qp.receive_lock);
  ReceiveRing& ring = *qp.receives;
  for (uint64_t next = ring.done.load(std::memory_order_acquire); next != ring.posted;) {
    int error = 0;
    next += post_slots(qp, next, ring.posted, error);
    if (error != 0) return error;
  }
  qp.keeps_receives = false;
  return 0;
}

void fail_receives(Qp& qp) {
  if (qp.shared_receives()) return;  // shared receives are for other queue pairs, too
  const std::lock_guard guard(qp.receive_lock);
  ReceiveRing& ring = *qp.receives;
  for (uint64_t next = ring.done.load(std::memory_order_acquire); next != ring.posted; ++next) {
    ibv_wc completion = {};
    completion.wr_id = ring.slots[next & ring.mask].shown_id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.opcode = IBV_WC_RECV;
    completion.qp_num = qp.qp_base.qp_num;
    keep_completion(*qp.receive_cq, completion);
  }
  ring.done.store(ring.posted, std::memory_order_release);
}

}  // namespace ppmr::verbs
