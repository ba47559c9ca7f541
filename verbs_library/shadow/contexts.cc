#include "verbs_library/shadow/contexts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "verbs_library/move/helper.h"
#include "verbs_library/protocol/refusals.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/creation.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/receive.h"
#include "verbs_library/shadow/send.h"
#include "verbs_library/shadow/shared_queues.h"

namespace ppmr::verbs {
namespace {

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes, size_t size) {
  const Control control;
  ibv_context* actual = shadow_of(context).real;
  if (!actual) return ENODEV;
  verbs_context* extended = verbs_get_ctx(actual);
  if (extended && extended->query_port) return extended->query_port(actual, port, attributes, size);
  return real().ibv_query_port(actual, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, size_t size) {
  const Control control;
  ibv_context* actual = shadow_of(context).real;
  if (!actual) return ENODEV;
  verbs_context* extended = verbs_get_ctx(actual);
  int error = EOPNOTSUPP;
  if (extended && extended->query_device_ex)
    error = extended->query_device_ex(actual, input, attributes, size);
  if (error == EOPNOTSUPP) error = real().ibv_query_device(actual, &attributes->orig_attr);
  if (error == 0) hide_refused(*attributes, size);
  return error;
}

// Refuses shared receive queues with extensions. Programs make others with ibv_create_srq().
ibv_srq* no_srq(ibv_context*, ibv_srq_init_attr_ex*) {
  return refuse("a shared receive queue with extensions");
}
ibv_xrcd* no_xrcd(ibv_context*, ibv_xrcd_init_attr*) { return refuse("an XRC domain"); }
ibv_flow* no_flow(ibv_qp*, ibv_flow_attr*) { return refuse("a flow"); }
ibv_dm* no_dm(ibv_context*, ibv_alloc_dm_attr*) { return refuse("device memory"); }
ibv_wq* no_wq(ibv_context*, ibv_wq_init_attr*) { return refuse("a work queue"); }
ibv_td* no_td(ibv_context*, ibv_td_init_attr*) { return refuse("a thread domain"); }
ibv_pd* no_parent(ibv_context*, ibv_parent_domain_init_attr*) { return refuse("a parent domain"); }
ibv_mr* no_null_mr(ibv_pd*) { return refuse("a null memory region"); }
ibv_counters* no_counters(ibv_context*, ibv_counters_init_attr*) { return refuse("counters"); }
ibv_qp* no_open_qp(ibv_context*, ibv_qp_open_attr*) { return refuse("a shared queue pair"); }
ibv_mw* no_mw(ibv_pd*, ibv_mw_type) { return refuse("a memory window"); }

void set_operations(Context& context) {
  context.query_port = query_port;
  context.query_device_ex = query_device_ex;
  context.create_qp_ex = create_queue_pair;
  context.create_cq_ex = create_extended_completion_queue;
  context.create_srq_ex = no_srq;
  context.open_xrcd = no_xrcd;
  context.ibv_create_flow = no_flow;
  context.alloc_dm = no_dm;
  context.create_wq = no_wq;
  context.alloc_td = no_td;
  context.alloc_parent_domain = no_parent;
  context.alloc_null_mr = no_null_mr;
  context.create_counters = no_counters;
  context.open_qp = no_open_qp;
  ibv_context_ops& operations = context.context.ops;
  operations.alloc_mw = no_mw;
  operations.poll_cq = poll_completions;
  operations.req_notify_cq = request_event;
  operations.post_send = post_send;
  operations.post_recv = post_receive;
  operations.post_srq_recv = post_shared_receive;
}

// Turns an event of the real device into one for the program. Returns false if it is about an
// object that the program does not have.
bool translate(ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: {
      auto* cq = static_cast<Cq*>(event.element.cq->cq_context);
      event.element.cq = cq->as_cq();
      return true;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      auto* qp = static_cast<Qp*>(event.element.qp->qp_context);
      event.element.qp = qp->as_qp();
      return true;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      auto* srq = static_cast<Srq*>(event.element.srq->srq_context);
      if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) note_limit_reached(*srq);
      event.element.srq = srq;
      return true;
    }
    case IBV_EVENT_WQ_FATAL:
      return false;
    default:
      return true;  // the event is about a port or about the device
  }
}

// Fetches an event of the device. Returns true if it is one for the program.
bool fetch_real_event(Context& context, ibv_async_event& event) {
  if (!context.real || real().ibv_get_async_event(context.real, &event) != 0) return false;
  ibv_async_event seen = event;
  const bool is_known = translate(seen);
  real().ibv_ack_async_event(&event);
  event = seen;
  return is_known;
}

// Fetches an event that the library has raised, or an event of the device. Returns true if there
// was one for the program. The caller holds World::control.
bool fetch_event(Context& context, ibv_async_event& event) {
  if (!context.device_raised.empty()) {
    event = context.device_raised.front();
    context.device_raised.pop_front();
    eventfd_t count = 0;
    eventfd_read(context.device_raised_fd, &count);
    return true;
  }
  return fetch_real_event(context, event);
}

bool blocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0; }

}  // namespace

std::nullptr_t refuse(const char* what) {
  log("refused: %s: it cannot be made again on another machine", what);
  errno = EOPNOTSUPP;
  return nullptr;
}

void raise_device_event(Context& context, const ibv_async_event& event) {
  context.device_raised.push_back(event);
  eventfd_write(context.device_raised_fd, 1);
}

void absorb_device_events(Context& context) {
  if (!context.real) return;
  pollfd ready = {.fd = context.real->async_fd, .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN)) {
    ibv_async_event event = {};
    if (fetch_real_event(context, event)) raise_device_event(context, event);
  }
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
  if (!is_shadow(device)) return real().ibv_open_device(device);
  ibv_context* opened = real().ibv_open_device(shadow_of(device).real);
  if (!opened) return nullptr;
  auto* context = new Context();
  context->sz = sizeof(verbs_context);
  ibv_context& seen = context->context;
  seen.device = device;
  seen.cmd_fd = -1;
  seen.num_comp_vectors = opened->num_comp_vectors;
  seen.abi_compat = __VERBS_ABI_IS_EXTENDED;
  seen.async_fd = epoll_create1(EPOLL_CLOEXEC);
  pthread_mutex_init(&seen.mutex, nullptr);
  context->origin = &shadow_of(device);
  context->real = opened;
  context->device_raised_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = context->device_raised_fd}};
  epoll_ctl(seen.async_fd, EPOLL_CTL_ADD, context->device_raised_fd, &event);
  attach_device_events(*context);
  set_operations(*context);
  {
    const Control control;
    world().contexts.push_back(context);
  }
  start_helper();
  return &seen;
}

int ibv_close_device(ibv_context* seen) {
  if (!is_shadow(seen)) return real().ibv_close_device(seen);
  const Control control;
  Context* context = &shadow_of(seen);
  if (context->real) {
    if (const int error = real().ibv_close_device(context->real); error != 0) return error;
  }
  std::erase(world().contexts, context);
  close(context->context.async_fd);
  close(context->device_raised_fd);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  if (!is_shadow(context)) return real().ibv_query_device(context, attributes);
  const Control control;
  ibv_context* actual = shadow_of(context).real;
  const int error = actual ? real().ibv_query_device(actual, attributes) : ENODEV;
  if (error == 0) hide_refused(*attributes);
  return error;
}

int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes) {
  if (!is_shadow(context)) return real().ibv_query_port(context, port, attributes);
  const Control control;
  ibv_context* actual = shadow_of(context).real;
  return actual ? real().ibv_query_port(actual, port, attributes) : ENODEV;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (!is_shadow(context)) return real().ibv_get_async_event(context, event);
  const int fd = context->async_fd;
  for (;;) {
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    // After a restore, poll(2) fails with EINTR. Programs do not expect that here, because
    // rdma-core calls read(2), which the kernel restarts.
    if (poll(&ready, 1, blocks(fd) ? -1 : 0) < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    if (ready.revents) {
      const Control control;
      if (fetch_event(shadow_of(context), *event)) return 0;
    }
    if (!blocks(fd)) {
      errno = EAGAIN;
      return -1;
    }
  }
}

void ibv_ack_async_event(ibv_async_event* event) {
  // The library has acknowledged events of its objects when it fetched them.
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      if (is_shadow(event->element.cq->context)) return;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (is_shadow(event->element.qp->context)) return;
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      if (is_shadow(event->element.srq->context)) return;
      break;
    case IBV_EVENT_WQ_FATAL:
      break;
    default:
      return;  // events about a port or the device need no acknowledgement
  }
  real().ibv_ack_async_event(event);
}

// Passes a query of the program to the device of this machine. So the answer may change with a
// move.
#define PPMR_ASK(name, context, failure, ...)                        \
  if (!is_shadow(context)) return real().name(context, __VA_ARGS__); \
  const Control control;                                             \
  ibv_context* actual = shadow_of(context).real;                     \
  return actual ? real().name(actual, __VA_ARGS__) : (failure)

int ibv_query_gid(ibv_context* context, uint8_t port, int index, union ibv_gid* gid) {
  PPMR_ASK(ibv_query_gid, context, -1, port, index, gid);
}

int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* key) {
  PPMR_ASK(ibv_query_pkey, context, -1, port, index, key);
}

int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 key) {
  PPMR_ASK(ibv_get_pkey_index, context, -1, port, key);
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t size) {
  PPMR_ASK(_ibv_query_gid_ex, context, ENODEV, port, index, entry, flags, size);
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t count,
                             uint32_t flags, size_t size) {
  PPMR_ASK(_ibv_query_gid_table, context, -ENODEV, entries, count, flags, size);
}

int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* completion, ibv_grh* header,
                        ibv_ah_attr* attributes) {
  PPMR_ASK(ibv_init_ah_from_wc, context, -1, port, completion, header, attributes);
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes, uint8_t* mac,
                                uint16_t* vlan) {
  PPMR_ASK(ibv_resolve_eth_l2_from_gid, context, ENODEV, attributes, mac, vlan);
}
}
