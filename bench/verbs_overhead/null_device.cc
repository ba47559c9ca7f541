// A libibverbs with a device that does nothing: a post completes at once, and a poll takes the
// completion. A verb then costs only its calls, so the cost of the library above this one shows.
#include <infiniband/verbs.h>
#include <sys/eventfd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned kPlaces = 1024;

struct Cq : ibv_cq {
  ibv_wc completions[kPlaces];
  unsigned taken = 0, made = 0;
};

ibv_device the_device = [] {
  ibv_device device = {};
  std::strcpy(device.name, "null0");
  return device;
}();

void complete(ibv_cq* seen, uint64_t id, ibv_wc_opcode opcode, uint32_t qpn) {
  Cq& cq = *static_cast<Cq*>(seen);
  ibv_wc& completion = cq.completions[cq.made++ % kPlaces];
  completion.wr_id = id;
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = opcode;
  completion.qp_num = qpn;
}

int poll_cq(ibv_cq* seen, int count, ibv_wc* completions) {
  Cq& cq = *static_cast<Cq*>(seen);
  int polled = 0;
  while (polled < count && cq.taken != cq.made)
    completions[polled++] = cq.completions[cq.taken++ % kPlaces];
  return polled;
}

int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr**) {
  for (; requests; requests = requests->next) {
    if (requests->send_flags & IBV_SEND_SIGNALED)
      complete(qp->send_cq, requests->wr_id, IBV_WC_SEND, qp->qp_num);
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr**) {
  for (; requests; requests = requests->next)
    complete(qp->recv_cq, requests->wr_id, IBV_WC_RECV, qp->qp_num);
  return 0;
}

}  // namespace

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  static ibv_device* list[2] = {&the_device, nullptr};
  if (count) *count = 1;
  return list;
}
void ibv_free_device_list(ibv_device**) {}

ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new verbs_context();
  context->sz = sizeof(*context);
  context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  context->context.device = device;
  context->context.async_fd = eventfd(0, 0);
  context->context.ops.poll_cq = poll_cq;
  context->context.ops.post_send = post_send;
  context->context.ops.post_recv = post_recv;
  return &context->context;
}
int ibv_close_device(ibv_context*) { return 0; }

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  return 0;
}
int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr*) { return 1; }

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd();
  pd->context = context;
  return pd;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int) {
  auto* region = new ibv_mr();
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = length;
  // Each registration gets a new key, so the library has to translate keys after a move.
  static uint32_t key = 0;
  key += 0x100;
  region->lkey = region->rkey = key;
  return region;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t, unsigned int) {
  return ibv_reg_mr(pd, address, length, 0);
}
int ibv_dereg_mr(ibv_mr* region) {
  delete region;
  return 0;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void*, ibv_comp_channel*, int) {
  auto* cq = new Cq();
  cq->context = context;
  cq->cqe = cqe;
  return cq;
}

int ibv_destroy_cq(ibv_cq* cq) {
  delete static_cast<Cq*>(cq);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  static uint32_t number = 0x11;
  auto* qp = new ibv_qp();
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_num = number++;
  return qp;
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }
int ibv_destroy_qp(ibv_qp*) { return 0; }
}
