// While nothing moves, a send costs a lock, a copy of the request (to replace its identifier) and a
// slot. The library looks up keys only after a move of this process or of the peer.
//
// Rejected: to keep the program's identifiers, and to find the queue pair of a completion by its
// number in a hash table. It was as slow, and a failed completion does not say to which queue of
// the queue pair it belongs.
#include "verbs_library/shadow/send.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/move/helper.h"
#include "verbs_library/protocol/refusals.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/doorbell.h"
#include "verbs_library/shadow/paths.h"

namespace ppmr::verbs {
namespace {

constexpr size_t kBatch = 8;  // the most requests in one call to the device
constexpr int kNoRoute = -1;  // an internal error number: the helper thread must find the route

bool takes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool has_completion(const Qp& qp, const ibv_send_wr& request) {
  return qp.init.sq_sig_all || (request.send_flags & IBV_SEND_SIGNALED);
}

// Replaces the keys of a copied request by the real keys. `pieces` has room for its pieces.
void translate_keys(const Qp& qp, ibv_send_wr& request, ibv_sge* pieces) {
  if (!(request.send_flags & IBV_SEND_INLINE) && !qp.local_keys->is_empty()) {
    for (int i = 0; i < request.num_sge; ++i) {
      pieces[i] = request.sg_list[i];
      pieces[i].lkey = qp.local_keys->real(pieces[i].lkey);
    }
    request.sg_list = pieces;
  }
  if (is_atomic(request.opcode)) {
    request.wr.atomic.rkey = qp.remote_keys->real(request.wr.atomic.rkey);
  } else if (request.opcode != IBV_WR_SEND && request.opcode != IBV_WR_SEND_WITH_IMM) {
    request.wr.rdma.rkey = qp.remote_keys->real(request.wr.rdma.rkey);
  }
}

// Sets the real destination of a datagram. Returns false if it has no route.
bool take_route(Qp& qp, ibv_send_wr& request) {
  const RouteKey key{static_cast<Ah*>(request.wr.ud.ah), request.wr.ud.remote_qpn};
  if (qp.last_route_key != key) {
    const auto found = qp.routes.find(key);
    if (found == qp.routes.end()) return false;
    qp.last_route_key = key;
    qp.last_route = found->second;
  }
  request.wr.ud.ah = qp.last_route.path;
  request.wr.ud.remote_qpn = qp.last_route.qpn;
  return true;
}

void take_slot(Qp& qp, ibv_send_wr& request) {
  SendRing& ring = *qp.sends;
  SendSlot& slot = ring.slots[ring.posted & ring.mask];
  slot.shown_id = request.wr_id;
  slot.number = ring.posted++;
  slot.is_marker = false;
  request.wr_id = reinterpret_cast<uint64_t>(&slot);
}

// Posts up to kBatch requests of the list. Returns how many the device has taken, and sets `error`
// if these are not all of them.
size_t post_batch(Qp& qp, const ibv_send_wr* requests, size_t room, int& error) {
  SendRing& ring = *qp.sends;
  ibv_send_wr copies[kBatch];
  size_t count = 0;
  const uint64_t posted_before = ring.posted;
  for (const ibv_send_wr* request = requests; request && count < std::min(room, kBatch);
       request = request->next, ++count) {
    if (refuse_send(request->opcode) ||
        request->num_sge > static_cast<int>(qp.init.cap.max_send_sge)) {
      error = EINVAL;
      break;
    }
    ibv_send_wr& copy = copies[count];
    copy = *request;
    if (qp.sends_datagrams() && !take_route(qp, copy)) {
      error = kNoRoute;
      break;
    }
    if (qp.translates) [[unlikely]]
      translate_keys(qp, copy, &qp.send_pieces[count * qp.init.cap.max_send_sge]);
    take_slot(qp, copy);
    copy.next = nullptr;
    if (count > 0) copies[count - 1].next = &copy;
  }
  if (count == 0) return 0;
  ibv_send_wr* bad = nullptr;
  const int failure = qp.real->context->ops.post_send(qp.real, copies, &bad);
  size_t taken = count;
  if (failure != 0) [[unlikely]] {
    if (failure == EACCES && ring_doorbell(*qp.real)) {
      if (bad) taken = static_cast<size_t>(bad - copies), error = ENOMEM;
    } else {
      taken = bad ? static_cast<size_t>(bad - copies) : 0;
      error = failure;
    }
  }
  ring.posted = posted_before + taken;
  const ibv_send_wr* request = requests;
  for (size_t i = 0; i < taken; ++i, request = request->next) {
    if (has_completion(qp, *request)) ring.signalled = posted_before + i + 1;
    if (takes_receive(request->opcode)) ++ring.messages;
  }
  return taken;
}

size_t room_in_ring(const Qp& qp) {
  const SendRing& ring = *qp.sends;
  const uint64_t in_flight = ring.posted - ring.done.load(std::memory_order_acquire);
  return in_flight < qp.init.cap.max_send_wr ? qp.init.cap.max_send_wr - in_flight : 0;
}

int post_to_device(Qp& qp, ibv_send_wr* requests, ibv_send_wr** bad) {
  while (requests) {
    int error = 0;
    const size_t room = room_in_ring(qp);
    size_t taken = room ? post_batch(qp, requests, room, error) : 0;
    if (taken == 0 && error == 0) error = ENOMEM;
    for (; taken > 0; --taken) requests = requests->next;
    if (error != 0) {
      *bad = requests;
      return error;
    }
  }
  return 0;
}

int hold_one(Qp& qp, const ibv_send_wr& request) {
  if (refuse_send(request.opcode) || request.num_sge > static_cast<int>(qp.init.cap.max_send_sge))
    return EINVAL;
  if (qp.held.size() >= qp.init.cap.max_send_wr) return ENOMEM;
  HeldSend held;
  held.request = request;
  held.request.next = nullptr;
  if (request.send_flags & IBV_SEND_INLINE) {
    // Copies the bytes, because the program may overwrite them as soon as the call has returned.
    for (int i = 0; i < request.num_sge; ++i) {
      const auto* bytes = reinterpret_cast<const char*>(request.sg_list[i].addr);
      held.inline_bytes.insert(held.inline_bytes.end(), bytes, bytes + request.sg_list[i].length);
    }
    if (held.inline_bytes.size() > qp.init.cap.max_inline_data) return EINVAL;
  } else {
    held.pieces.assign(request.sg_list, request.sg_list + request.num_sge);
  }
  qp.held.push_back(std::move(held));
  return 0;
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

ibv_wc failed_completion(const Qp& qp, const ibv_send_wr& request, ibv_wc_status status) {
  ibv_wc completion = {};
  completion.wr_id = request.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(request.opcode);
  completion.qp_num = qp.qp_base.qp_num;
  return completion;
}

}  // namespace

int post_send(ibv_qp* qp_seen, ibv_send_wr* requests, ibv_send_wr** bad) {
  Qp& qp = shadow_of(qp_seen);
  const std::lock_guard guard(qp.send_lock);
  if (!qp.is_gated) [[likely]] {
    const int error = post_to_device(qp, requests, bad);
    if (error != kNoRoute) [[likely]]
      return error;
    requests = *bad;
    qp.is_gated = true;
    wake_helper();
  }
  if (qp.wakes_helper) wake_helper();
  for (; requests; requests = requests->next) {
    if (qp.has_ended) {
      keep_completion(*qp.send_cq, failed_completion(qp, *requests, IBV_WC_WR_FLUSH_ERR));
      continue;
    }
    if (const int error = hold_one(qp, *requests); error != 0) {
      *bad = requests;
      return error;
    }
  }
  return 0;
}

void gate_sends(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  qp.is_gated = true;
}

bool open_sends(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  while (!qp.held.empty()) {
    HeldSend& held = qp.held.front();
    ibv_sge inline_piece = {};
    if (held.request.send_flags & IBV_SEND_INLINE) {
      inline_piece.addr = reinterpret_cast<uint64_t>(held.inline_bytes.data());
      inline_piece.length = static_cast<uint32_t>(held.inline_bytes.size());
      held.request.sg_list = &inline_piece;
      held.request.num_sge = held.inline_bytes.empty() ? 0 : 1;
    } else {
      held.request.sg_list = held.pieces.data();
    }
    ibv_send_wr* bad = nullptr;
    if (post_to_device(qp, &held.request, &bad) != 0) return false;
    qp.held.pop_front();
  }
  qp.is_gated = false;
  return true;
}

void mark_end_of_sends(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  SendRing& ring = *qp.sends;
  if (!qp.real || ring.signalled == ring.posted ||
      ring.posted == ring.done.load(std::memory_order_acquire))
    return;
  if (qp.sends_datagrams() && !qp.last_route.path) return;
  // There is always room: the real queue and the ring have one place that the program does not
  // know.
  SendSlot& slot = ring.slots[ring.posted & ring.mask];
  slot.number = ring.posted;
  slot.is_marker = true;
  ibv_send_wr request = {};
  request.wr_id = reinterpret_cast<uint64_t>(&slot);
  request.opcode = IBV_WR_RDMA_WRITE;  // writes no bytes
  request.send_flags = IBV_SEND_SIGNALED;
  if (qp.sends_datagrams()) {
    request.opcode = IBV_WR_SEND;
    request.wr.ud.ah = qp.last_route.path;
    request.wr.ud.remote_qpn = kNoQueuePair;
  }
  ibv_send_wr* bad = nullptr;
  const int failure = qp.real->context->ops.post_send(qp.real, &request, &bad);
  if (failure != 0 && !(failure == EACCES && !bad && ring_doorbell(*qp.real))) return;
  ring.signalled = ++ring.posted;
}

bool are_sends_gated(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  return qp.is_gated;
}

std::vector<RouteKey> missing_routes(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  std::vector<RouteKey> missing;
  for (const HeldSend& held : qp.held) {
    const auto& to = held.request.wr.ud;
    const RouteKey key{static_cast<const Ah*>(to.ah), to.remote_qpn};
    if (!qp.routes.contains(key)) missing.push_back(key);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

void add_route(Qp& qp, const RouteKey& key, const Route& route) {
  const std::lock_guard guard(qp.send_lock);
  qp.routes[key] = route;
}

void remove_routes(Qp& qp, const std::function<bool(const RouteKey&)>& is_removed) {
  const std::lock_guard guard(qp.send_lock);
  std::erase_if(qp.routes, [&](const auto& route) { return is_removed(route.first); });
  qp.last_route_key = {};  // keeps last_route, because a marker needs its address handle
}

void forget_path(Qp& qp, const Ah* path) {
  remove_routes(qp, [&](const RouteKey& key) { return !path || key.path == path; });
  const std::lock_guard guard(qp.send_lock);
  qp.last_route = {};
}

bool fail_held_sends(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  if (qp.held.empty()) return false;
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  for (const HeldSend& held : qp.held) {
    keep_completion(*qp.send_cq, failed_completion(qp, held.request, status));
    status = IBV_WC_WR_FLUSH_ERR;
  }
  qp.held.clear();
  return true;
}

Traffic traffic_of(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  const uint64_t done = qp.sends->done.load(std::memory_order_acquire);
  return {.sends_done = done == qp.sends->posted,
          .sent = qp.sends->messages,
          .received = qp.receives->done.load(std::memory_order_acquire)};
}

bool await_held_send(Qp& qp) {
  const std::lock_guard guard(qp.send_lock);
  qp.wakes_helper = true;
  return !qp.held.empty();
}

}  // namespace ppmr::verbs
