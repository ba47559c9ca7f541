// The functions of libibverbs over the stub device.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/movable_verbs/stub/stub.h"

namespace stub {

void give_up(const char* what) {
  std::fprintf(stderr, "stub device: %s\n", what);
  std::abort();
}

void wake(Device& device) { eventfd_write(device.wake_fd, 1); }

void complete(Cq& cq, const ibv_wc& completion) {
  if (static_cast<int>(cq.completions.size()) >= cq.cqe) give_up("a completion queue overflows");
  ibv_wc seen = completion;
  if (seen.status != IBV_WC_SUCCESS) {
    // The specification gives these fields no meaning after a failure.
    seen.opcode = static_cast<ibv_wc_opcode>(0xee);
    seen.byte_len = 0xeeeeeeee;
    seen.src_qp = 0xeeeeee;
    seen.wc_flags = 0xee;
  }
  cq.completions.push_back(seen);
  if (!cq.armed || !cq.channel) return;
  cq.armed = 0;
  ibv_cq* address = &cq;
  if (write(static_cast<Channel*>(cq.channel)->write_fd, &address, sizeof(address)) !=
      static_cast<ssize_t>(sizeof(address)))
    give_up("an event is lost");
}

void fail_queue_pair(Device& device, Qp& qp) {
  if (qp.state == IBV_QPS_ERR) return;
  qp.state = IBV_QPS_ERR;
  for (; !qp.sends.empty(); qp.sends.pop_front()) {
    ibv_wc completion = {};
    completion.wr_id = qp.sends.front().request.wr_id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.qp_num = qp.qp_num;
    complete(*static_cast<Cq*>(qp.send_cq), completion);
  }
  for (; !qp.receives.empty(); qp.receives.pop_front()) {
    ibv_wc completion = {};
    completion.wr_id = qp.receives.front().id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.qp_num = qp.qp_num;
    complete(*static_cast<Cq*>(qp.recv_cq), completion);
  }
  qp.is_under_way = false;
  (void)device;
}

Receive take_receive(Device& device, Qp& qp) {
  Receive taken = std::move(qp.waiting().front());
  qp.waiting().pop_front();
  auto* srq = static_cast<Srq*>(qp.srq);
  if (!srq || srq->receives.size() >= srq->attributes.srq_limit) return taken;
  srq->attributes.srq_limit = 0;
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  event.element.srq = srq;
  if (write(device.async_write_fd, &event, sizeof(event)) != sizeof(event))
    give_up("an event is lost");
  return taken;
}

Mr* find_region(Device& device, uint32_t key, bool is_remote) {
  const auto found = device.regions.find((key & ~kRemoteKeyBit) >> 8);
  if (found == device.regions.end()) return nullptr;
  const Mr* region = found->second;
  return (is_remote ? region->rkey : region->lkey) == key ? found->second : nullptr;
}

namespace {

ibv_device the_device = [] {
  ibv_device device = {};
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  std::strcpy(device.name, "stub0");
  std::strcpy(device.dev_name, "uverbs0");
  return device;
}();

Device& device_of(ibv_context* context) { return of(context); }

int poll_cq(ibv_cq* seen, int count, ibv_wc* completions) {
  Cq& cq = *static_cast<Cq*>(seen);
  const std::lock_guard guard(device_of(seen->context).lock);
  int polled = 0;
  for (; polled < count && !cq.completions.empty(); cq.completions.pop_front())
    completions[polled++] = cq.completions.front();
  return polled;
}

int req_notify_cq(ibv_cq* seen, int solicited) {
  const std::lock_guard guard(device_of(seen->context).lock);
  static_cast<Cq*>(seen)->armed = solicited ? 2 : 1;
  return 0;
}

int post_send(ibv_qp* seen, ibv_send_wr* requests, ibv_send_wr** bad) {
  Qp& qp = *static_cast<Qp*>(seen);
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  for (; requests; requests = requests->next) {
    int error = 0;
    if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_ERR) error = EINVAL;
    if (requests->num_sge > static_cast<int>(qp.init.cap.max_send_sge)) error = EINVAL;
    if (qp.qp_type == IBV_QPT_UD && !device.paths.contains(static_cast<Ah*>(requests->wr.ud.ah)))
      give_up("a send over an address handle that does not exist");
    if (qp.sends.size() >= qp.init.cap.max_send_wr) error = ENOMEM;
    Send send;
    send.request = *requests;
    uint64_t total = 0;
    for (int i = 0; i < requests->num_sge; ++i) {
      const ibv_sge& piece = requests->sg_list[i];
      total += piece.length;
      if (requests->send_flags & IBV_SEND_INLINE) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(piece.addr);
        send.inline_bytes.insert(send.inline_bytes.end(), bytes, bytes + piece.length);
      } else {
        send.pieces.push_back(piece);
      }
    }
    if (total > kMessageBytesMax || send.inline_bytes.size() > qp.init.cap.max_inline_data)
      error = EINVAL;
    if (error != 0) {
      *bad = requests;
      wake(device);
      return error;
    }
    qp.sends.push_back(std::move(send));
    if (qp.state == IBV_QPS_ERR) {
      qp.state = IBV_QPS_RTS;
      fail_queue_pair(device, qp);
    }
  }
  wake(device);
  return 0;
}

int post_recv(ibv_qp* seen, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Qp& qp = *static_cast<Qp*>(seen);
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  for (; requests; requests = requests->next) {
    int error = qp.state == IBV_QPS_RESET || qp.srq ? EINVAL : 0;
    if (requests->num_sge > static_cast<int>(qp.init.cap.max_recv_sge)) error = EINVAL;
    if (qp.receives.size() >= qp.init.cap.max_recv_wr) error = ENOMEM;
    if (error != 0) {
      *bad = requests;
      return error;
    }
    qp.receives.push_back(
        {requests->wr_id, {requests->sg_list, requests->sg_list + requests->num_sge}});
    if (qp.state == IBV_QPS_ERR) {
      qp.state = IBV_QPS_RTS;
      fail_queue_pair(device, qp);
    }
  }
  return 0;
}

int post_srq_recv(ibv_srq* seen, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Srq& srq = *static_cast<Srq*>(seen);
  const std::lock_guard guard(device_of(seen->context).lock);
  for (; requests; requests = requests->next) {
    int error = requests->num_sge > static_cast<int>(srq.attributes.max_sge) ? EINVAL : 0;
    if (srq.receives.size() >= srq.attributes.max_wr) error = ENOMEM;
    if (error != 0) {
      *bad = requests;
      return error;
    }
    srq.receives.push_back(
        {requests->wr_id, {requests->sg_list, requests->sg_list + requests->num_sge}});
  }
  return 0;
}

void read_place(Device& device) {
  int number = 1;
  if (const char* path = std::getenv("PPMR_STUB_PLACE")) {
    std::ifstream place(path);
    place >> number;
    int room = 0;
    if (place >> room) device.objects_max = room;
  }
  device.machine = "127.0.1." + std::to_string(number);
}

// Returns whether the device can make one more object; if not, sets errno. The caller holds the
// lock.
bool has_room(const Device& device) {
  if (device.objects < device.objects_max) return true;
  errno = ENOMEM;
  return false;
}

union ibv_gid gid_of(const Device& device) {
  union ibv_gid gid = {};
  gid.raw[10] = gid.raw[11] = 0xff;
  inet_pton(AF_INET, device.machine.c_str(), gid.raw + 12);
  return gid;
}

int query_port(ibv_context*, uint8_t port, ibv_port_attr* attributes, size_t size) {
  if (port != 1) return EINVAL;
  ibv_port_attr answer = {};
  answer.state = IBV_PORT_ACTIVE;
  answer.max_mtu = answer.active_mtu = IBV_MTU_4096;
  answer.gid_tbl_len = 2;
  answer.pkey_tbl_len = 1;
  answer.max_msg_sz = kMessageBytesMax;
  answer.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memcpy(attributes, &answer, std::min(size, sizeof(answer)));
  return 0;
}

}  // namespace
}  // namespace stub

using namespace stub;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count) *count = 1;
  auto** list = static_cast<ibv_device**>(std::calloc(2, sizeof(ibv_device*)));
  list[0] = &the_device;
  return list;
}
void ibv_free_device_list(ibv_device** list) { std::free(list); }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }
__be64 ibv_get_device_guid(ibv_device*) { return 1; }
int ibv_get_device_index(ibv_device*) { return 0; }

ibv_context* ibv_open_device(ibv_device* device) {
  auto* opened = new Device();
  opened->sz = sizeof(verbs_context);
  opened->query_port = query_port;
  ibv_context& context = opened->context;
  context.device = device;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  context.num_comp_vectors = 1;
  context.cmd_fd = -1;
  context.ops.poll_cq = poll_cq;
  context.ops.req_notify_cq = req_notify_cq;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
  context.ops.post_srq_recv = post_srq_recv;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) give_up("pipe");
  context.async_fd = ends[0];
  opened->async_write_fd = ends[1];
  read_place(*opened);
  opened->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  opened->engine = std::thread([opened] { run_engine(*opened); });
  return &context;
}

int ibv_close_device(ibv_context* context) {
  Device* device = &device_of(context);
  {
    const std::lock_guard guard(device->lock);
    if (device->objects != 0) return EBUSY;
    device->ends = true;
  }
  wake(*device);
  device->engine.join();
  close(device->wake_fd);
  close(device->async_write_fd);
  close(context->async_fd);
  delete device;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_qp_wr = 4096;
  attributes->max_qp = 1024;
  attributes->max_sge = 16;
  attributes->max_cqe = 65536;
  attributes->max_srq = 16;
  attributes->max_mr = 65536;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = 16;
  attributes->atomic_cap = IBV_ATOMIC_HCA;
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attributes),
                    sizeof(ibv_port_attr));
}

// The GID at index 0 is link-local and cannot be used. The GID at index 1 is the machine's address.
int ibv_query_gid(ibv_context* context, uint8_t port, int index, union ibv_gid* gid) {
  if (port != 1 || index < 0 || index > 1) {
    errno = EINVAL;
    return -1;
  }
  *gid = gid_of(device_of(context));
  if (index == 0) {
    gid->raw[0] = 0xfe;
    gid->raw[1] = 0x80;
    gid->raw[10] = gid->raw[11] = 0;
  }
  return 0;
}

int ibv_query_pkey(ibv_context*, uint8_t, int, __be16* key) {
  *key = 0xffff;
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return read(context->async_fd, event, sizeof(*event)) == sizeof(*event) ? 0 : -1;
}
void ibv_ack_async_event(ibv_async_event*) {}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const std::lock_guard guard(device_of(context).lock);
  if (!has_room(device_of(context))) return nullptr;
  auto* pd = new Pd();
  pd->context = context;
  ++device_of(context).objects;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  if (static_cast<Pd*>(seen)->users) return EBUSY;
  --device.objects;
  delete static_cast<Pd*>(seen);
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                         unsigned int access) {
  Device& device = device_of(pd->context);
  const std::lock_guard guard(device.lock);
  if (!has_room(device)) return nullptr;
  // Takes the lowest free number, as rxe does.
  uint32_t number = 1;
  while (device.regions.contains(number)) ++number;
  auto* region = new Mr();
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = length;
  region->iova = iova;
  region->access = access;
  region->lkey = number << 8;
  region->rkey = region->lkey | kRemoteKeyBit;
  device.regions[number] = region;
  ++static_cast<Pd*>(pd)->users;
  ++device.objects;
  return region;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, address, length, reinterpret_cast<uint64_t>(address),
                          static_cast<unsigned int>(access));
}

int ibv_dereg_mr(ibv_mr* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  device.regions.erase(seen->lkey >> 8);
  --static_cast<Pd*>(seen->pd)->users;
  --device.objects;
  delete static_cast<Mr*>(seen);
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new Channel();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) give_up("pipe");
  channel->context = context;
  channel->fd = ends[0];
  channel->write_fd = ends[1];
  const std::lock_guard guard(device_of(context).lock);
  ++device_of(context).objects;
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  if (seen->refcnt) return EBUSY;
  close(seen->fd);
  close(static_cast<Channel*>(seen)->write_fd);
  --device.objects;
  delete static_cast<Channel*>(seen);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int) {
  const std::lock_guard guard(device_of(context).lock);
  if (!has_room(device_of(context))) return nullptr;
  auto* cq = new Cq();
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = cqe;
  if (channel) ++channel->refcnt;
  ++device_of(context).objects;
  return cq;
}

int ibv_resize_cq(ibv_cq* seen, int cqe) {
  const std::lock_guard guard(device_of(seen->context).lock);
  if (static_cast<int>(static_cast<Cq*>(seen)->completions.size()) > cqe) return EINVAL;
  seen->cqe = cqe;
  return 0;
}

int ibv_destroy_cq(ibv_cq* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  auto* cq = static_cast<Cq*>(seen);
  if (cq->users) return EBUSY;
  if (cq->events_read != cq->events_acknowledged) give_up("events are not acknowledged");
  if (seen->channel) --seen->channel->refcnt;
  --device.objects;
  delete cq;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  if (read(channel->fd, cq, sizeof(*cq)) != static_cast<ssize_t>(sizeof(*cq))) return -1;
  *cq_context = (*cq)->cq_context;
  const std::lock_guard guard(device_of(channel->context).lock);
  ++static_cast<Cq*>(*cq)->events_read;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  const std::lock_guard guard(device_of(cq->context).lock);
  static_cast<Cq*>(cq)->events_acknowledged += count;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  const std::lock_guard guard(device_of(pd->context).lock);
  if (!has_room(device_of(pd->context))) return nullptr;
  auto* srq = new Srq();
  srq->context = pd->context;
  srq->srq_context = init->srq_context;
  srq->pd = pd;
  srq->attributes = init->attr;
  ++static_cast<Pd*>(pd)->users;
  ++device_of(pd->context).objects;
  return srq;
}

int ibv_modify_srq(ibv_srq* seen, ibv_srq_attr* wanted, int mask) {
  const std::lock_guard guard(device_of(seen->context).lock);
  if (mask & ~IBV_SRQ_LIMIT) return EINVAL;
  static_cast<Srq*>(seen)->attributes.srq_limit = wanted->srq_limit;
  return 0;
}

int ibv_query_srq(ibv_srq* seen, ibv_srq_attr* attributes) {
  const std::lock_guard guard(device_of(seen->context).lock);
  *attributes = static_cast<Srq*>(seen)->attributes;
  return 0;
}

int ibv_destroy_srq(ibv_srq* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  if (static_cast<Srq*>(seen)->users) return EBUSY;
  --static_cast<Pd*>(seen->pd)->users;
  --device.objects;
  delete static_cast<Srq*>(seen);
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  Device& device = device_of(pd->context);
  const std::lock_guard guard(device.lock);
  if (!attributes->is_global || attributes->grh.sgid_index != 1) {
    errno = EINVAL;
    return nullptr;
  }
  if (!has_room(device)) return nullptr;
  auto* path = new Ah();
  path->context = pd->context;
  path->pd = pd;
  path->attributes = *attributes;
  device.paths.insert(path);
  ++static_cast<Pd*>(pd)->users;
  ++device.objects;
  return path;
}

int ibv_destroy_ah(ibv_ah* seen) {
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  device.paths.erase(static_cast<Ah*>(seen));
  --static_cast<Pd*>(seen->pd)->users;
  --device.objects;
  delete static_cast<Ah*>(seen);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Device& device = device_of(pd->context);
  const bool is_known = init->qp_type == IBV_QPT_RC || init->qp_type == IBV_QPT_UD;
  if (!is_known || init->cap.max_send_wr > 4096) {
    errno = EINVAL;
    return nullptr;
  }
  const std::lock_guard guard(device.lock);
  if (!has_room(device)) return nullptr;
  auto* qp = new Qp();
  qp->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // Takes the lowest free number of the machine, as rxe does.
  constexpr uint32_t kFirst = 0x11;
  for (uint32_t number = kFirst;; ++number) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof(name.sun_path), "%s/%s-%x", std::getenv("PPMR_STUB_FABRIC"),
                  device.machine.c_str(), number);
    if (bind(qp->fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0) {
      qp->qp_num = number;
      qp->path = name.sun_path;
      break;
    }
    if (errno != EADDRINUSE) give_up("bind a queue pair");
  }
  init->cap.max_inline_data = std::max<uint32_t>(init->cap.max_inline_data, 64);
  qp->context = pd->context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_type = init->qp_type;
  qp->init = *init;
  qp->srq = init->srq;
  if (init->srq) ++static_cast<Srq*>(init->srq)->users;
  ++static_cast<Pd*>(pd)->users;
  ++static_cast<Cq*>(init->send_cq)->users;
  ++static_cast<Cq*>(init->recv_cq)->users;
  ++device.objects;
  device.queue_pairs.insert(qp);
  wake(device);
  return qp;
}

int ibv_modify_qp(ibv_qp* seen, ibv_qp_attr* wanted, int mask) {
  Qp& qp = *static_cast<Qp*>(seen);
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  if (mask & IBV_QP_ACCESS_FLAGS) qp.attributes.qp_access_flags = wanted->qp_access_flags;
  if (mask & IBV_QP_QKEY) qp.attributes.qkey = wanted->qkey;
  if (mask & IBV_QP_AV) qp.attributes.ah_attr = wanted->ah_attr;
  if (mask & IBV_QP_DEST_QPN) qp.attributes.dest_qp_num = wanted->dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) qp.expected_psn = wanted->rq_psn;
  if (mask & IBV_QP_SQ_PSN) qp.next_psn = wanted->sq_psn;
  if (!(mask & IBV_QP_STATE)) return 0;
  const ibv_qp_state to = wanted->qp_state;
  const bool is_step = (to == IBV_QPS_INIT && qp.state == IBV_QPS_RESET) ||
                       (to == IBV_QPS_RTR && qp.state == IBV_QPS_INIT) ||
                       (to == IBV_QPS_RTS && qp.state == IBV_QPS_RTR) || to == IBV_QPS_RESET ||
                       to == IBV_QPS_ERR;
  if (!is_step) return EINVAL;
  if (to == IBV_QPS_RTR && qp.qp_type == IBV_QPT_RC && wanted->ah_attr.grh.sgid_index != 1)
    return EINVAL;
  if (to == IBV_QPS_ERR) {
    fail_queue_pair(device, qp);
  } else {
    qp.state = to;
  }
  if (to == IBV_QPS_RESET) {
    qp.sends.clear();
    qp.receives.clear();
    qp.is_under_way = false;
    qp.last_answer.clear();
  }
  wake(device);
  return 0;
}

int ibv_query_qp(ibv_qp* seen, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  Qp& qp = *static_cast<Qp*>(seen);
  const std::lock_guard guard(device_of(seen->context).lock);
  *attributes = qp.attributes;
  attributes->qp_state = qp.state;
  *init = qp.init;
  return 0;
}

// The device has no interface of its own for building requests.
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return nullptr; }

int ibv_destroy_qp(ibv_qp* seen) {
  Qp* qp = static_cast<Qp*>(seen);
  Device& device = device_of(seen->context);
  const std::lock_guard guard(device.lock);
  device.queue_pairs.erase(qp);
  close(qp->fd);
  unlink(qp->path.c_str());
  --static_cast<Pd*>(qp->pd)->users;
  --static_cast<Cq*>(qp->send_cq)->users;
  --static_cast<Cq*>(qp->recv_cq)->users;
  if (qp->srq) --static_cast<Srq*>(qp->srq)->users;
  --device.objects;
  delete qp;
  return 0;
}
}
