#include "verbs_library/move/replace.h"

#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/move/connection.h"
#include "verbs_library/move/datagrams.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/creation.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/paths.h"
#include "verbs_library/shadow/receive.h"
#include "verbs_library/shadow/send.h"
#include "verbs_library/shadow/shared_queues.h"

namespace ppmr::verbs {
namespace {

uint32_t new_psn() {
  uint32_t psn = 0;
  (void)!getrandom(&psn, sizeof(psn), 0);
  return psn & 0xffffff;
}

// Logs all failures, and keeps the first one.
class Failures {
 public:
  void note(const char* step, int error) {
    if (error == 0) return;
    log("%s: %s", step, std::strerror(error));
    if (first_.empty()) first_ = std::string(step) + ": " + std::strerror(error);
  }
  std::string take() { return std::move(first_); }

 private:
  std::string first_;
};

void destroy_queue_pairs(Context& context, Failures& failures) {
  for (Qp* qp : context.queue_pairs) {
    keep_receives(*qp);
    gate_sends(*qp);
  }
  for (Srq* srq : context.shared_queues) keep_shared_receives(*srq);
  for (Cq* cq : context.completion_queues) absorb_completions(*cq);
  for (Qp* qp : context.queue_pairs) {
    const std::lock_guard sends(qp->send_lock);
    const std::lock_guard receives(qp->receive_lock);
    if (!qp->real) continue;
    failures.note("destroy a queue pair", real().ibv_destroy_qp(qp->real));
    qp->real = nullptr;
  }
  for (Qp* qp : context.queue_pairs) forget_path(*qp, nullptr);
}

void destroy_shared_queues(Context& context, Failures& failures) {
  for (Srq* srq : context.shared_queues) {
    ibv_srq* old = nullptr;
    {
      const std::lock_guard guard(srq->lock);
      std::swap(old, srq->real);
    }
    if (old) failures.note("destroy a shared receive queue", real().ibv_destroy_srq(old));
  }
}

void destroy_completion_queues(Context& context, Failures& failures) {
  for (Cq* cq : context.completion_queues) absorb_completions(*cq);
  for (Channel* channel : context.channels) absorb_events(*channel);
  for (Cq* cq : context.completion_queues) {
    ibv_cq* old = nullptr;
    {
      const std::lock_guard guard(cq->lock);
      std::swap(old, cq->real);
      cq->retired.clear();  // the queue's completions, which could refer to them, are gone with it
      cq->receivers.clear();
    }
    if (old) failures.note("destroy a completion queue", real().ibv_destroy_cq(old));
  }
  for (Channel* channel : context.channels) {
    const std::lock_guard guard(channel->lock);
    if (!channel->real) continue;
    // A forked child may have a copy of the descriptor. So closing the descriptor would not remove
    // it from the epoll instance.
    epoll_ctl(channel->fd, EPOLL_CTL_DEL, channel->real->fd, nullptr);
    failures.note("destroy a completion channel", real().ibv_destroy_comp_channel(channel->real));
    channel->real = nullptr;
  }
}

void destroy_memory(Context& context, Failures& failures) {
  failures.note("show what a device has written", world().unshown_error);
  for (Mr* region : context.regions) {
    if (region->real) failures.note("release a memory region", real().ibv_dereg_mr(region->real));
    region->real = nullptr;
    failures.note("show what a device has written", show_writes(*region));
  }
  for (Ah* path : context.paths)
    failures.note("destroy an address handle", destroy_real_paths(*path));
  for (Pd* domain : context.domains) {
    if (domain->real)
      failures.note("release a protection domain", real().ibv_dealloc_pd(domain->real));
    domain->real = nullptr;
  }
}

void make_tables(Context& context) {
  std::vector<KeyPair> local, remote;
  for (const Mr* region : context.regions) {
    if (!region->real) continue;
    if (region->real->lkey != region->lkey) local.push_back({region->lkey, region->real->lkey});
    if (region->real->rkey != region->rkey) remote.push_back({region->rkey, region->real->rkey});
  }
  const auto old_local = std::move(context.local_keys);
  context.local_keys = std::make_unique<KeyTable>(local);
  context.remote_keys = std::make_unique<KeyTable>(remote);
  for (Qp* qp : context.queue_pairs) {
    const std::lock_guard sends(qp->send_lock);
    const std::lock_guard receives(qp->receive_lock);
    qp->local_keys = context.local_keys.get();
    qp->translates = !qp->local_keys->is_empty() || !qp->remote_keys->is_empty();
  }
  for (Srq* srq : context.shared_queues) {
    const std::lock_guard guard(srq->lock);
    srq->local_keys = context.local_keys.get();
  }
}

int to_init(Qp& qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  if (qp.sends_datagrams()) {
    attributes.pkey_index = qp.attributes.pkey_index;
    attributes.port_num = qp.attributes.port_num;
    attributes.qkey = qp.attributes.qkey;
    return real().ibv_modify_qp(qp.real, &attributes,
                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  }
  attributes.pkey_index = qp.attributes.pkey_index;
  attributes.port_num = qp.attributes.port_num;
  attributes.qp_access_flags = qp.attributes.qp_access_flags | IBV_ACCESS_REMOTE_WRITE;
  return real().ibv_modify_qp(qp.real, &attributes,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

// Moves a new UD queue pair to the state that the program knows. This can be done at once, because
// a UD queue pair has no peer to wait for.
int to_shown_state(Qp& qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  if (qp.qp_base.state != IBV_QPS_RTR && qp.qp_base.state != IBV_QPS_RTS) return 0;
  if (const int error = real().ibv_modify_qp(qp.real, &attributes, IBV_QP_STATE); error != 0)
    return error;
  if (qp.qp_base.state == IBV_QPS_RTR) return 0;
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = new_psn();
  return real().ibv_modify_qp(qp.real, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int to_error(Qp& qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return real().ibv_modify_qp(qp.real, &attributes, IBV_QP_STATE);
}

// Makes the real queue pair with its receives, in INIT. If it was in RESET or ERR, or is of UD,
// leaves it in its former state.
int make_queue_pair(Qp& qp) {
  ibv_qp* made = new_real_queue_pair(qp);
  if (!made) return errno ? errno : EIO;
  {
    const std::lock_guard sends(qp.send_lock);
    const std::lock_guard receives(qp.receive_lock);
    qp.real = made;
    qp.sends->signalled = qp.sends->posted;
  }
  if (qp.shared_receives()) add_receiver(*qp.receive_cq, made->qp_num, qp.receives);
  const ibv_qp_state shown = qp.qp_base.state;
  // A queue pair in RESET has no receives, so the call only ends keep_receives().
  if (shown == IBV_QPS_RESET) return post_receives_again(qp);
  if (const int error = to_init(qp); error != 0) return error;
  if (const int error = post_receives_again(qp); error != 0) return error;
  if (qp.sends_datagrams()) {
    if (const int error = to_shown_state(qp); error != 0) return error;
  }
  const bool was_broken = shown == IBV_QPS_ERR || shown == IBV_QPS_SQE;
  return was_broken ? to_error(qp) : 0;
}

GidEntry gid_now(const Qp& qp, const GidEntry& shown, uint32_t port) {
  const auto chosen = choose_gid(shown, read_gids(qp.owner->real, port));
  return chosen ? *chosen : shown;
}

int to_ready(Qp& qp, const QueuePairAddress& peer) {
  ibv_qp_attr attributes = qp.attributes;
  attributes.qp_state = IBV_QPS_RTR;
  std::copy(peer.gid.begin(), peer.gid.end(), attributes.ah_attr.grh.dgid.raw);
  attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(qp.connection->gid.index);
  attributes.dest_qp_num = peer.qpn;
  attributes.rq_psn = peer.psn;
  if (const int error = real().ibv_modify_qp(qp.real, &attributes,
                                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                                 IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0)
    return error;
  if (qp.qp_base.state == IBV_QPS_RTR) return 0;
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = qp.connection->psn;
  return real().ibv_modify_qp(qp.real, &attributes,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

// Chooses the GID and the packet number of the new real queue pair, before the peer gets its
// address.
void choose_address(Qp& qp) {
  if (!qp.connection || !qp.shown_gid) return;
  qp.connection->gid = gid_now(qp, *qp.shown_gid, qp.attributes.port_num);
  qp.connection->psn = new_psn();
  qp.connection->is_fresh = true;
}

void make_queues(Context& context, Failures& failures) {
  for (Channel* channel : context.channels)
    failures.note("make a completion channel", make_real_channel(*channel));
  for (Cq* cq : context.completion_queues)
    failures.note("make a completion queue", make_real_completion_queue(*cq));
}

void make_domains(Context& context, Failures& failures) {
  for (Pd* domain : context.domains) {
    domain->real = context.real ? real().ibv_alloc_pd(context.real) : nullptr;
    failures.note("make a protection domain", domain->real ? 0 : errno ? errno : EIO);
  }
  for (Mr* region : context.regions) {
    failures.note("register memory", region->domain->real ? make_real_region(*region) : ENODEV);
  }
}

}  // namespace

std::string destroy_real_objects() {
  Failures failures;
  for (Context* context : world().contexts) {
    absorb_device_events(*context);
    destroy_queue_pairs(*context, failures);
    // Completions may refer to receives of the shared queues, so it takes them first.
    for (Cq* cq : context->completion_queues) absorb_completions(*cq);
    destroy_shared_queues(*context, failures);
    destroy_completion_queues(*context, failures);
    destroy_memory(*context, failures);
    if (!context->real) continue;
    epoll_ctl(context->context.async_fd, EPOLL_CTL_DEL, context->real->async_fd, nullptr);
    failures.note("close the device", real().ibv_close_device(context->real));
    context->real = nullptr;
  }
  return failures.take();
}

std::string make_real_objects() {
  Failures failures;
  for (Context* context : world().contexts) {
    context->real = open_real_device(*context->origin);
    failures.note("open the device", context->real ? 0 : errno ? errno : ENODEV);
    if (context->real) attach_device_events(*context);
    make_domains(*context, failures);
    make_queues(*context, failures);
    make_tables(*context);
    for (Srq* srq : context->shared_queues)
      failures.note("make a shared receive queue", make_real_shared_queue(*srq));
    context->has_moved = true;
    for (Qp* qp : context->queue_pairs) {
      const int error = context->real ? make_queue_pair(*qp) : ENODEV;
      failures.note("make a queue pair", error);
      if (error != 0) {
        end_queue_pair(*qp);
        continue;
      }
      choose_address(*qp);
      // A connected queue pair must wait for its peer.
      if (!qp->connection) open_sends(*qp);
    }
  }
  return failures.take();
}

int connect_again(Qp& qp, const QueuePairAddress& peer) {
  absorb_completions(*qp.send_cq);
  absorb_completions(*qp.receive_cq);
  if (!qp.connection->is_fresh) {
    keep_receives(qp);
    ibv_qp* old = qp.real;
    if (const int error = make_queue_pair(qp); error != 0) return error;
    choose_address(qp);
    absorb_completions(*qp.send_cq);
    absorb_completions(*qp.receive_cq);
    if (old) {
      const uint32_t old_qpn = old->qp_num;
      real().ibv_destroy_qp(old);
      if (qp.shared_receives()) remove_receiver(*qp.receive_cq, old_qpn);
    }
  }
  qp.connection->is_fresh = false;
  {
    const std::lock_guard guard(qp.send_lock);
    qp.remote_keys = std::make_unique<KeyTable>(peer.keys);
    qp.translates = !qp.local_keys->is_empty() || !qp.remote_keys->is_empty();
  }
  return to_ready(qp, peer);
}

namespace {

std::vector<KeyPair> keys_for_peers(const Context& context) {
  std::vector<KeyPair> keys;
  for (const Mr* region : context.regions) {
    if (context.remote_keys->is_taken(region->rkey))
      keys.push_back({region->rkey, context.remote_keys->real(region->rkey)});
  }
  return keys;
}

}  // namespace

QueuePairAddress address_of(const Qp& qp, const ControlAddress& control) {
  return {.gid = qp.connection->gid.gid,
          .qpn = qp.real ? qp.real->qp_num : 0,
          .psn = qp.connection->psn,
          .control = control,
          .keys = keys_for_peers(*qp.owner)};
}

QueuePairAddress address_of(const Qp& qp, const EndName& name, const ControlAddress& control) {
  return {.gid = gid_now(qp, name.gid, name.port).gid,
          .qpn = qp.real ? qp.real->qp_num : 0,
          .psn = 0,
          .control = control,
          .keys = keys_for_peers(*qp.owner)};
}

void end_queue_pair(Qp& qp) {
  qp.connection.reset();
  qp.qp_base.state = IBV_QPS_ERR;
  fail_held_sends(qp);
  if (qp.real && to_error(qp) == 0) {
    // The queue pair is in ERR, so the device completes all requests with an error.
    open_sends(qp);
  } else {
    fail_receives(qp);
    const std::lock_guard guard(qp.send_lock);
    qp.is_gated = true;
    qp.has_ended = true;
  }
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = qp.as_qp();
  raise_device_event(*qp.owner, event);
}

}  // namespace ppmr::verbs
