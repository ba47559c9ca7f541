#include "verbs_library/protocol/refusals.h"

#include <cstddef>
#include <cstring>

namespace ppmr::verbs {
namespace {

constexpr uint32_t kQueuePairExtensions = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
constexpr uint64_t kSendOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
constexpr unsigned int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
constexpr int kChanges =
    IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_ACCESS_FLAGS |
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
    IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP | IBV_QP_DEST_QPN;
constexpr unsigned int kHiddenCapabilities =
    IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
    IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_AUTO_PATH_MIG |
    IBV_DEVICE_MANAGED_FLOW_STEERING;

}  // namespace

const char* refuse_queue_pair(const ibv_qp_init_attr_ex& wanted) {
  switch (wanted.qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UD:
      break;
    case IBV_QPT_UC:
      return "a UC queue pair";
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return "an XRC queue pair";
    case IBV_QPT_RAW_PACKET:
      return "a queue pair for raw packets";
    default:
      return "a queue pair of the vendor's own type";
  }
  if (wanted.comp_mask & ~kQueuePairExtensions) return "a queue pair with extensions";
  if ((wanted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
      (wanted.send_ops_flags & ~kSendOperations))
    return "a queue pair for memory windows, invalidations or TSO";
  return nullptr;
}

const char* refuse_completion_queue(const ibv_cq_init_attr_ex& wanted) {
  if (wanted.wc_flags & ~uint64_t{IBV_WC_STANDARD_FLAGS})
    return "a completion queue with time stamps, tags or flows";
  if ((wanted.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
      (wanted.flags & ~uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED}))
    return "a completion queue that may overflow";
  if (wanted.comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS})
    return "a completion queue with extensions";
  return nullptr;
}

const char* refuse_memory(unsigned int access) {
  if (access & IBV_ACCESS_ON_DEMAND) return "on-demand paging";
  if (access & IBV_ACCESS_MW_BIND) return "memory windows";
  if (access & IBV_ACCESS_ZERO_BASED) return "zero-based memory regions";
  // Refuses unknown optional flags, too. A library may ignore them, but a program would lose their
  // effect.
  if (access & ~kAccess) return "an unknown kind of memory region";
  return nullptr;
}

const char* refuse_send(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return nullptr;
    default:
      return "a send that binds, invalidates or segments";
  }
}

const char* refuse_change(const ibv_qp_attr& attributes, int mask) {
  if (mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)) return "an alternate path";
  if (mask & IBV_QP_RATE_LIMIT) return "a rate limit";
  if (mask & IBV_QP_CAP) return "a change of a queue pair's size";
  if (mask & ~kChanges) return "an unknown attribute";
  if ((mask & IBV_QP_STATE) && attributes.qp_state == IBV_QPS_SQD) return "a drained send queue";
  return nullptr;
}

void hide_refused(ibv_device_attr& attributes) {
  attributes.device_cap_flags &= ~kHiddenCapabilities;
  attributes.max_mw = 0;
  attributes.max_mcast_grp = 0;
  --attributes.max_qp_wr;  // leaves one place for the marker
}

void hide_refused(ibv_device_attr_ex& attributes, size_t size_bytes) {
  hide_refused(attributes.orig_attr);
  // The caller's structure may be older and shorter than this one. The fields after orig_attr
  // describe extensions, and zero means that an extension is not supported.
  const size_t begin = offsetof(ibv_device_attr_ex, comp_mask);
  const size_t keep = offsetof(ibv_device_attr_ex, phys_port_cnt_ex);
  const size_t after = keep + sizeof(attributes.phys_port_cnt_ex);
  auto* bytes = reinterpret_cast<unsigned char*>(&attributes);
  const auto clear = [&](size_t from, size_t to) {
    if (to > size_bytes) to = size_bytes;
    if (from < to) std::memset(bytes + from, 0, to - from);
  };
  clear(begin, keep);
  clear(after, sizeof(attributes));
}

}  // namespace ppmr::verbs
