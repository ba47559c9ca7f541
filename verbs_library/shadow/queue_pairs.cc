// Queue pairs: makes, connects, queries and destroys them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/move/connection.h"
#include "verbs_library/move/datagrams.h"
#include "verbs_library/move/directory.h"
#include "verbs_library/move/helper.h"
#include "verbs_library/move/peers.h"
#include "verbs_library/protocol/refusals.h"
#include "verbs_library/shadow/builder.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/creation.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/send.h"

namespace ppmr::verbs {

Qp::Qp() : ibv_qp_ex{} {}
Qp::~Qp() = default;

namespace {

bool is_number_free(const Context& context, uint32_t number) {
  return std::none_of(context.queue_pairs.begin(), context.queue_pairs.end(),
                      [&](const Qp* qp) { return qp->qp_base.qp_num == number; });
}

// Makes a real queue pair whose number no other queue pair of the program has, and whose names are
// free in the directory.
ibv_qp* make_with_free_number(Qp& qp) {
  std::vector<ibv_qp*> taken;
  ibv_qp* made = nullptr;
  for (int draw = 0; draw < kDrawsMax; ++draw) {
    made = new_real_queue_pair(qp);
    if (!made) break;
    if (is_number_free(*qp.owner, made->qp_num) && claim_names(qp, made->qp_num, control_address()))
      break;
    log("the number %x of a queue pair is taken", made->qp_num);
    taken.push_back(made);  // occupies its number, so that the next queue pair gets another one
    made = nullptr;
  }
  const int error = errno;
  for (ibv_qp* one : taken) real().ibv_destroy_qp(one);
  errno = made || taken.empty() ? error : ENOMEM;
  return made;
}

void make_rings(Qp& qp) {
  // The ring needs room for the marker, too.
  qp.sends = std::make_shared<SendRing>(qp.init.cap.max_send_wr + 2);
  qp.receives = std::make_shared<ReceiveRing>(std::max<uint32_t>(qp.init.cap.max_recv_wr, 1),
                                              std::max<uint32_t>(qp.init.cap.max_recv_sge, 1));
  qp.sends->shown_qpn = qp.receives->shown_qpn = qp.qp_base.qp_num;
  if (qp.shared_receives() && qp.real) add_receiver(*qp.receive_cq, qp.real->qp_num, qp.receives);
}

// Replaces the rings by empty ones, because the program has reset the queue pair.
void replace_rings(Qp& qp) {
  const std::lock_guard sends(qp.send_lock);
  const std::lock_guard receives(qp.receive_lock);
  retire(*qp.send_cq, qp.sends);
  retire(*qp.receive_cq, qp.receives);
  make_rings(qp);
  qp.held.clear();
  qp.is_gated = false;
}

void remember(Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attributes;
#define PPMR_REMEMBER(bit, member) \
  if (mask & (bit)) to.member = from.member
  PPMR_REMEMBER(IBV_QP_ACCESS_FLAGS, qp_access_flags);
  PPMR_REMEMBER(IBV_QP_PKEY_INDEX, pkey_index);
  PPMR_REMEMBER(IBV_QP_PORT, port_num);
  PPMR_REMEMBER(IBV_QP_QKEY, qkey);
  PPMR_REMEMBER(IBV_QP_AV, ah_attr);
  PPMR_REMEMBER(IBV_QP_PATH_MTU, path_mtu);
  PPMR_REMEMBER(IBV_QP_TIMEOUT, timeout);
  PPMR_REMEMBER(IBV_QP_RETRY_CNT, retry_cnt);
  PPMR_REMEMBER(IBV_QP_RNR_RETRY, rnr_retry);
  PPMR_REMEMBER(IBV_QP_RQ_PSN, rq_psn);
  PPMR_REMEMBER(IBV_QP_SQ_PSN, sq_psn);
  PPMR_REMEMBER(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  PPMR_REMEMBER(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
  PPMR_REMEMBER(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
  PPMR_REMEMBER(IBV_QP_DEST_QPN, dest_qp_num);
#undef PPMR_REMEMBER
  qp.attributes_set |= mask;
}

Gid to_gid(const union ibv_gid& raw) {
  Gid gid;
  std::copy_n(raw.raw, gid.size(), gid.begin());
  return gid;
}

// Begins the connection to the peer that the program has named. The caller holds World::control.
void begin_connection(Qp& qp, const EndId& peer, const std::optional<FoundPeer>& found) {
  const ibv_ah_attr& path = qp.attributes.ah_attr;
  for (const GidEntry& entry : read_gids(qp.owner->real, qp.attributes.port_num)) {
    if (entry.index == path.grh.sgid_index) qp.shown_gid = entry;
  }
  const EndId mine{qp.shown_gid ? qp.shown_gid->gid : Gid{}, qp.qp_base.qp_num};
  qp.connection = std::make_unique<Connection>(mine, peer);
  Connection& connection = *qp.connection;
  if (!path.is_global || !qp.shown_gid) {
    connection.problem = "a queue pair is connected without global addresses (GRH)";
  } else if (mine == peer) {
    connection.problem = "a queue pair is connected with itself";
  }
  if (found) {
    connection.peer_file = found->file;
    const std::lock_guard guard(qp.send_lock);
    qp.remote_keys = std::make_unique<KeyTable>(found->keys);
    qp.translates = !qp.local_keys->is_empty() || !qp.remote_keys->is_empty();
  }
  {
    const std::lock_guard guard(qp.receive_lock);
    qp.receives->shown_peer = peer.qpn;
  }
  // The peer may have connected to the number that this queue pair had before its process moved.
  if (qp.real->qp_num != qp.qp_base.qp_num && !connection.problem) {
    connection.link.begin_returned();
    connection.gid = *qp.shown_gid;
    connection.is_gated = true;
    gate_sends(qp);  // before the first send of the program
  }
  publish_names(qp, control_address(), false);
}

void end_connection(Qp& qp) {
  qp.connection.reset();
  fail_held_sends(qp);
  const std::lock_guard guard(qp.send_lock);
  qp.is_gated = false;
}

}  // namespace

namespace {

bool has_real_parts(const Qp& qp) {
  return qp.domain->real && qp.send_cq->real && qp.receive_cq->real &&
         (!qp.shared_receives() || qp.shared_receives()->real);
}

// Returns the attributes for the real queue pair.
ibv_qp_init_attr real_attributes(Qp& qp) {
  ibv_qp_init_attr wanted = qp.init;
  wanted.qp_context = &qp;  // so that an event of the real queue pair leads to our object
  wanted.send_cq = qp.send_cq->real;
  wanted.recv_cq = qp.receive_cq->real;
  if (qp.shared_receives()) wanted.srq = qp.shared_receives()->real;
  ++wanted.cap.max_send_wr;  // a place for the marker
  return wanted;
}

}  // namespace

ibv_qp* new_real_queue_pair(Qp& qp) {
  if (!has_real_parts(qp)) {
    errno = ENODEV;
    return nullptr;
  }
  ibv_qp_init_attr wanted = real_attributes(qp);
  return real().ibv_create_qp(qp.domain->real, &wanted);
}

ibv_qp* create_queue_pair(ibv_context* seen, ibv_qp_init_attr_ex* wanted) {
  if (const char* what = refuse_queue_pair(*wanted)) return refuse(what);
  if (!(wanted->comp_mask & IBV_QP_INIT_ATTR_PD) || !wanted->send_cq || !wanted->recv_cq) {
    errno = EINVAL;
    return nullptr;
  }
  const Control control;
  auto* qp = new Qp();
  qp->owner = &shadow_of(seen);
  qp->domain = &shadow_of(wanted->pd);
  qp->send_cq = &shadow_of(wanted->send_cq);
  qp->receive_cq = &shadow_of(wanted->recv_cq);
  // The plain structure is a prefix of the extended one.
  std::memcpy(&qp->init, wanted, sizeof(qp->init));
  if (qp->init.srq) qp->init.srq = &shadow_of(wanted->srq);
  if (qp->sends_datagrams()) qp->datagrams = std::make_unique<Datagrams>();
  if (!has_real_parts(*qp)) {
    delete qp;
    errno = ENODEV;
    return nullptr;
  }
  qp->secret = new_secret();
  // The first real queue pair shows which sizes the device grants. The library requests the same
  // sizes after a move.
  ibv_qp_init_attr granted = real_attributes(*qp);
  ibv_qp* probe = real().ibv_create_qp(qp->domain->real, &granted);
  if (!probe) {
    const int error = errno;
    delete qp;
    errno = error;
    return nullptr;
  }
  qp->init.cap = granted.cap;
  --qp->init.cap.max_send_wr;
  if (is_number_free(*qp->owner, probe->qp_num) &&
      claim_names(*qp, probe->qp_num, control_address())) {
    qp->real = probe;
  } else {
    log("the number %x of a queue pair is taken", probe->qp_num);
    qp->real = make_with_free_number(*qp);
    const int error = errno;
    real().ibv_destroy_qp(probe);
    if (!qp->real) {
      delete qp;
      errno = error;
      return nullptr;
    }
  }
  wanted->cap = qp->init.cap;
  ibv_qp& shown = qp->qp_base;
  shown.context = seen;
  shown.qp_context = wanted->qp_context;
  shown.pd = wanted->pd;
  shown.send_cq = wanted->send_cq;
  shown.recv_cq = wanted->recv_cq;
  shown.srq = wanted->srq;
  shown.handle = qp->real->handle;
  shown.qp_num = qp->real->qp_num;
  shown.state = IBV_QPS_RESET;
  shown.qp_type = wanted->qp_type;
  pthread_mutex_init(&shown.mutex, nullptr);
  pthread_cond_init(&shown.cond, nullptr);
  make_rings(*qp);
  qp->local_keys = qp->owner->local_keys.get();
  qp->remote_keys = std::make_unique<KeyTable>();
  qp->translates = !qp->local_keys->is_empty();
  constexpr size_t kBatchMax = 16;
  qp->send_pieces.resize(kBatchMax * std::max<uint32_t>(qp->init.cap.max_send_sge, 1));
  qp->receive_pieces.resize(kBatchMax * std::max<uint32_t>(qp->init.cap.max_recv_sge, 1));
  if (wanted->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) set_builder(*qp);
  qp->owner->queue_pairs.push_back(qp);
  return &shown;
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  if (!is_shadow(pd->context)) return real().ibv_create_qp(pd, wanted);
  ibv_qp_init_attr_ex extended = {};
  std::memcpy(&extended, wanted, sizeof(*wanted));
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd;
  ibv_qp* made = create_queue_pair(pd->context, &extended);
  if (made) wanted->cap = extended.cap;
  return made;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* seen) {
  if (!is_shadow(seen->context)) return real().ibv_qp_to_qp_ex(seen);
  Qp& qp = shadow_of(seen);
  return qp.builder ? &qp : nullptr;
}

int ibv_modify_qp(ibv_qp* seen, ibv_qp_attr* wanted, int mask) {
  if (!is_shadow(seen->context)) return real().ibv_modify_qp(seen, wanted, mask);
  if (const char* what = refuse_change(*wanted, mask)) {
    refuse(what);
    return EOPNOTSUPP;
  }
  Qp& qp = shadow_of(seen);
  const bool sets_state = mask & IBV_QP_STATE;
  const bool connects = sets_state && wanted->qp_state == IBV_QPS_RTR && (mask & IBV_QP_AV);
  const EndId peer{to_gid(wanted->ah_attr.grh.dgid), wanted->dest_qp_num};
  // Calls find_peer() without the lock, because it may have to wait for the peer.
  const auto found = connects && wanted->ah_attr.is_global ? find_peer(qp, peer) : std::nullopt;
  const Control control;
  if (!qp.real) return ENODEV;
  ibv_qp_attr actual = *wanted;
  // Permits remote writes to this queue pair, because the peer's marker is an RDMA WRITE of no
  // bytes. Memory regions still need their own permission.
  if (mask & IBV_QP_ACCESS_FLAGS) actual.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE;
  if (found && found->has_moved) {
    std::copy(found->gid.begin(), found->gid.end(), actual.ah_attr.grh.dgid.raw);
    actual.dest_qp_num = found->qpn;
  }
  if (const int error = real().ibv_modify_qp(qp.real, &actual, mask); error != 0) return error;
  remember(qp, *wanted, mask);
  if (!sets_state) return 0;
  seen->state = wanted->qp_state;
  if (connects) begin_connection(qp, peer, found);
  if (wanted->qp_state == IBV_QPS_ERR) end_connection(qp);
  if (wanted->qp_state == IBV_QPS_RESET) {
    end_connection(qp);
    replace_rings(qp);
  }
  wake_helper();
  return 0;
}

int ibv_query_qp(ibv_qp* seen, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) {
  if (!is_shadow(seen->context)) return real().ibv_query_qp(seen, attributes, mask, init);
  const Control control;
  Qp& qp = shadow_of(seen);
  if (!qp.real) return ENODEV;
  if (const int error = real().ibv_query_qp(qp.real, attributes, mask, init); error != 0)
    return error;
  *init = qp.init;
  init->qp_context = seen->qp_context;
  init->send_cq = seen->send_cq;
  init->recv_cq = seen->recv_cq;
  init->srq = seen->srq;
  attributes->cap = qp.init.cap;
  attributes->qp_access_flags = qp.attributes.qp_access_flags;
  if (qp.connection) {
    // Between a move and GO, the state of the real queue pair is behind the state that the program
    // knows.
    if (attributes->qp_state != IBV_QPS_ERR && attributes->qp_state != IBV_QPS_SQE)
      attributes->qp_state = seen->state;
    attributes->dest_qp_num = qp.connection->link.peer().qpn;
    attributes->ah_attr = qp.attributes.ah_attr;
  }
  seen->state = attributes->qp_state;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp* seen, ibv_wr_opcode opcode, uint32_t flags) {
  if (!is_shadow(seen->context)) return real().ibv_query_qp_data_in_order(seen, opcode, flags);
  return 0;  // another device may not keep the order
}

int ibv_destroy_qp(ibv_qp* seen) {
  if (!is_shadow(seen->context)) return real().ibv_destroy_qp(seen);
  const Control control;
  Qp* qp = &shadow_of(seen);
  if (qp->real) {
    const uint32_t real_qpn = qp->real->qp_num;
    if (const int error = real().ibv_destroy_qp(qp->real); error != 0) return error;
    if (qp->shared_receives()) remove_receiver(*qp->receive_cq, real_qpn);
  }
  retire(*qp->send_cq, qp->sends);
  retire(*qp->receive_cq, qp->receives);
  remove_names(*qp);
  std::erase(qp->owner->queue_pairs, qp);
  delete qp;
  return 0;
}
}
