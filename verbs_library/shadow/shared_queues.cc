#include "verbs_library/shadow/shared_queues.h"

#include <algorithm>
#include <cerrno>

#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/creation.h"

namespace ppmr::verbs {
namespace {

constexpr size_t kBatch = 16;  // the most receives in one call to the device

SharedSlot* take_slot(Srq& srq, const ibv_recv_wr& request) {
  SharedSlot* slot = srq.receives->take();
  if (!slot) return nullptr;
  slot->shown_id = request.wr_id;
  slot->number = srq.posted++;
  slot->piece_count = request.num_sge;
  std::copy_n(request.sg_list, request.num_sge, srq.receives->pieces_of(*slot));
  return slot;
}

// Posts at most kBatch receives. Returns how many the device has taken.
size_t post_slots(Srq& srq, SharedSlot* const* slots, size_t count, int& error) {
  SharedReceives& receives = *srq.receives;
  ibv_recv_wr requests[kBatch];
  for (size_t i = 0; i < count; ++i) {
    ibv_recv_wr& request = requests[i];
    request.wr_id = reinterpret_cast<uint64_t>(slots[i]) | kReceiveBit | kSharedBit;
    request.next = i + 1 < count ? &requests[i + 1] : nullptr;
    request.sg_list = receives.pieces_of(*slots[i]);
    request.num_sge = slots[i]->piece_count;
    if (!srq.local_keys->is_empty()) [[unlikely]] {
      ibv_sge* pieces = &srq.room[i * receives.pieces_max];
      for (int piece = 0; piece < request.num_sge; ++piece) {
        pieces[piece] = request.sg_list[piece];
        pieces[piece].lkey = srq.local_keys->real(pieces[piece].lkey);
      }
      request.sg_list = pieces;
    }
  }
  ibv_recv_wr* bad = nullptr;
  error = srq.real->context->ops.post_srq_recv(srq.real, requests, &bad);
  if (error == 0) return count;
  return bad ? static_cast<size_t>(bad - requests) : 0;
}

int post_again(Srq& srq) {
  const std::vector<SharedSlot*> slots = srq.receives->posted();
  for (size_t next = 0; next < slots.size();) {
    int error = 0;
    next += post_slots(srq, &slots[next], std::min(kBatch, slots.size() - next), error);
    if (error != 0) return error;
  }
  return 0;
}

int arm_limit(ibv_srq* real_queue, uint32_t limit) {
  ibv_srq_attr wanted = {};
  wanted.srq_limit = limit;
  return real().ibv_modify_srq(real_queue, &wanted, IBV_SRQ_LIMIT);
}

}  // namespace

int post_shared_receive(ibv_srq* seen, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Srq& srq = shadow_of(seen);
  const std::lock_guard guard(srq.lock);
  while (requests) {
    SharedSlot* slots[kBatch];
    size_t count = 0;
    int error = 0;
    ibv_recv_wr* next = requests;
    for (; next && count < kBatch; next = next->next, ++count) {
      if (next->num_sge > static_cast<int>(srq.receives->pieces_max)) {
        error = EINVAL;
      } else if (!(slots[count] = take_slot(srq, *next))) {
        error = ENOMEM;
      }
      if (error != 0) break;
    }
    if (!srq.keeps_receives && count > 0) {
      int refused = 0;
      const size_t taken = post_slots(srq, slots, count, refused);
      if (refused != 0) {
        for (size_t i = taken; i < count; ++i) srq.receives->release(*slots[i]);
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

void keep_shared_receives(Srq& srq) {
  const std::lock_guard guard(srq.lock);
  srq.keeps_receives = true;
}

int make_real_shared_queue(Srq& srq) {
  if (!srq.domain->real) return ENODEV;
  ibv_srq_init_attr wanted = srq.init;
  wanted.srq_context = &srq;  // so that an event of the real queue leads to our object
  wanted.attr.srq_limit = 0;
  ibv_srq* made = real().ibv_create_srq(srq.domain->real, &wanted);
  if (!made) return errno ? errno : EIO;
  const std::lock_guard guard(srq.lock);
  srq.real = made;
  if (const int error = post_again(srq); error != 0) return error;
  srq.keeps_receives = false;
  return srq.armed_limit ? arm_limit(made, srq.armed_limit) : 0;
}

void note_limit_reached(Srq& srq) { srq.armed_limit = 0; }

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
  if (!is_shadow(pd->context)) return real().ibv_create_srq(pd, wanted);
  const Control control;
  Pd& domain = shadow_of(pd);
  if (!domain.real) {
    errno = ENODEV;
    return nullptr;
  }
  auto* srq = new Srq();
  srq->context = pd->context;
  srq->srq_context = wanted->srq_context;
  srq->pd = pd;
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  srq->owner = domain.owner;
  srq->domain = &domain;
  ibv_srq_init_attr granted = *wanted;
  granted.srq_context = srq;
  srq->real = real().ibv_create_srq(domain.real, &granted);
  if (!srq->real) {
    const int error = errno;
    delete srq;
    errno = error;
    return nullptr;
  }
  srq->handle = srq->real->handle;
  srq->init = granted;
  srq->local_keys = domain.owner->local_keys.get();
  const uint32_t pieces_max = std::max<uint32_t>(granted.attr.max_sge, 1);
  srq->receives = std::make_unique<SharedReceives>(granted.attr.max_wr, pieces_max);
  srq->room.resize(kBatch * pieces_max);
  domain.owner->shared_queues.push_back(srq);
  wanted->attr = granted.attr;
  return srq;
}

int ibv_modify_srq(ibv_srq* seen, ibv_srq_attr* wanted, int mask) {
  if (!is_shadow(seen->context)) return real().ibv_modify_srq(seen, wanted, mask);
  if (mask & ~IBV_SRQ_LIMIT) {
    refuse("a change of a shared receive queue's size");
    return EOPNOTSUPP;
  }
  const Control control;
  Srq& srq = shadow_of(seen);
  if (!srq.real) return ENODEV;
  if (const int error = real().ibv_modify_srq(srq.real, wanted, mask); error != 0) return error;
  if (mask & IBV_SRQ_LIMIT) srq.armed_limit = wanted->srq_limit;
  return 0;
}

int ibv_query_srq(ibv_srq* seen, ibv_srq_attr* attributes) {
  if (!is_shadow(seen->context)) return real().ibv_query_srq(seen, attributes);
  const Control control;
  Srq& srq = shadow_of(seen);
  return srq.real ? real().ibv_query_srq(srq.real, attributes) : ENODEV;
}

int ibv_destroy_srq(ibv_srq* seen) {
  if (!is_shadow(seen->context)) return real().ibv_destroy_srq(seen);
  const Control control;
  Srq* srq = &shadow_of(seen);
  if (srq->real) {
    if (const int error = real().ibv_destroy_srq(srq->real); error != 0) return error;
  }
  std::erase(srq->owner->shared_queues, srq);
  delete srq;
  return 0;
}
}
