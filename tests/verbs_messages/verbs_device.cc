#include "tests/verbs_messages/verbs_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace verbs_messages {
namespace {

constexpr int kCompletionsMax = 1024;
// 4.096 us * 2^17 = 0.5 s. With a shorter timeout the emulated devices of the lab would retransmit
// everything on a loaded computer. After five timeouts, within 3 s, this end notices that a partner
// has vanished.
constexpr uint8_t kTimeout = 17;
constexpr uint8_t kRetries = 5;
constexpr uint32_t kPsnMask = 0xffffff;

// Checks the result of a function of libibverbs, which returns errno or sets it.
void check(int result, const char* what) {
  if (result == 0) return;
  if (result > 0) errno = result;
  fail(what);
}

template <typename T>
VerbsPointer<T> owned(T* object, const char* what) {
  if (object == nullptr) fail(what);
  return VerbsPointer<T>(object);
}

bool is_ipv4(const ibv_gid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}

}  // namespace

void fail(const std::string& what) { throw Failure(what + ": " + std::strerror(errno)); }

Device::Device() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (list == nullptr) fail("list the RDMA devices");
  for (int i = 0; i < count && !context_; ++i) {
    VerbsPointer<ibv_context> context(ibv_open_device(list[i]));
    if (context && find_address(context.get())) context_ = std::move(context);
  }
  ibv_free_device_list(list);
  if (!context_) throw Failure("no RDMA device has an IPv4 address");
  domain_ = owned(ibv_alloc_pd(context_.get()), "allocate a protection domain");
  channel_ = owned(ibv_create_comp_channel(context_.get()), "create a completion channel");
  check(fcntl(channel_->fd, F_SETFL, O_NONBLOCK), "make the completion channel non-blocking");
  completions_ = owned(ibv_create_cq(context_.get(), kCompletionsMax, nullptr, channel_.get(), 0),
                       "create a completion queue");
}

bool Device::find_address(ibv_context* context) {
  std::array<ibv_gid_entry, 256> entries;
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    ibv_port_attr port{};
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || !is_ipv4(entry.gid)) continue;
    if (ibv_query_port(context, static_cast<uint8_t>(entry.port_num), &port) != 0) continue;
    gid_ = entry.gid;
    gid_index_ = static_cast<uint8_t>(entry.gid_index);
    port_ = static_cast<uint8_t>(entry.port_num);
    mtu_ = port.active_mtu;
    return true;
  }
  return false;
}

std::string Device::address() const {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, gid_.raw + 12, text, sizeof text);
  return text;
}

void Device::arm() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  // The destruction of the queue waits until each event is acknowledged.
  while (ibv_get_cq_event(channel_.get(), &queue, &unused) == 0) ibv_ack_cq_events(queue, 1);
  check(ibv_req_notify_cq(completions_.get(), 0), "arm the completion queue");
}

bool Device::next(ibv_wc& completion) {
  const int count = ibv_poll_cq(completions_.get(), 1, &completion);
  if (count < 0) fail("poll the completion queue");
  return count == 1;
}

QueuePair::QueuePair(Device& device, uint32_t id) : device_(device), id_(id) {
  const size_t bytes = (kReceiveSlots + kSendSlots) * kSlotBytes;
  memory_ = std::make_unique<std::byte[]>(bytes);
  region_ = owned(ibv_reg_mr(device.domain_.get(), memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE),
                  "register memory (is RLIMIT_MEMLOCK high enough?)");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = device.completions_.get();
  wanted.cap = {.max_send_wr = kSendSlots,
                .max_recv_wr = kReceiveSlots,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 1;
  pair_ = owned(ibv_create_qp(device.domain_.get(), &wanted), "create a queue pair");
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = device.port_;
  check(ibv_modify_qp(pair_.get(), &state,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        "initialise a queue pair");
  if (getrandom(&psn_, sizeof psn_, 0) != sizeof psn_) fail("draw a random number");
  psn_ &= kPsnMask;
  for (size_t i = 0; i < kReceiveSlots; ++i) post_receive(i);
  for (size_t i = 0; i < kSendSlots; ++i) free_.push_back(kReceiveSlots + i);
}

QueuePairAddress QueuePair::address() const {
  return {.gid = device_.gid_, .number = pair_->qp_num, .psn = psn_};
}

void QueuePair::connect(const QueuePairAddress& partner) {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = device_.mtu_;
  state.dest_qp_num = partner.number;
  state.rq_psn = partner.psn & kPsnMask;
  state.max_dest_rd_atomic = 1;
  state.min_rnr_timer = 20;  // code for 10 ms
  state.ah_attr.is_global = 1;
  state.ah_attr.port_num = device_.port_;
  state.ah_attr.grh = {.dgid = partner.gid,
                       .flow_label = 0,
                       .sgid_index = device_.gid_index_,
                       .hop_limit = 64,
                       .traffic_class = 0};
  check(ibv_modify_qp(pair_.get(), &state,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        "let a queue pair receive");
  state.qp_state = IBV_QPS_RTS;
  state.timeout = kTimeout;
  state.retry_cnt = kRetries;
  state.rnr_retry = 6;
  state.sq_psn = psn_;
  state.max_rd_atomic = 1;
  check(ibv_modify_qp(pair_.get(), &state,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
        "let a queue pair send");
}

void QueuePair::send(std::span<const std::byte> head, std::span<const std::byte> body) {
  const size_t number = free_.back();
  if (head.size() + body.size() > kSlotBytes) throw Failure("a message is too long");
  std::memcpy(slot(number), head.data(), head.size());
  if (!body.empty()) std::memcpy(slot(number) + head.size(), body.data(), body.size());
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(slot(number)),
                .length = static_cast<uint32_t>(head.size() + body.size()),
                .lkey = region_->lkey};
  ibv_send_wr request{};
  request.wr_id = (uint64_t{id_} << 32) | number;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  ibv_send_wr* refused = nullptr;
  check(ibv_post_send(pair_.get(), &request, &refused), "post a send");
  free_.pop_back();
}

std::span<const std::byte> QueuePair::received(const ibv_wc& completion) const {
  return {slot(slot_of(completion)), completion.byte_len};
}

void QueuePair::post_receive(size_t number) {
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(slot(number)),
                .length = kSlotBytes,
                .lkey = region_->lkey};
  ibv_recv_wr request{};
  request.wr_id = (uint64_t{id_} << 32) | kReceive | number;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  check(ibv_post_recv(pair_.get(), &request, &refused), "post a receive");
}

}  // namespace verbs_messages
