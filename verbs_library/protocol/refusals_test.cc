#include "verbs_library/protocol/refusals.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ppmr::verbs {
namespace {

ibv_qp_init_attr_ex queue_pair(ibv_qp_type type) {
  ibv_qp_init_attr_ex wanted = {};
  wanted.qp_type = type;
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
  return wanted;
}

TEST(Refusals, OnlyReliableConnectionsAndDatagramsAreMade) {
  EXPECT_EQ(refuse_queue_pair(queue_pair(IBV_QPT_RC)), nullptr);
  EXPECT_EQ(refuse_queue_pair(queue_pair(IBV_QPT_UD)), nullptr);
  for (const ibv_qp_type type :
       {IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER})
    EXPECT_NE(refuse_queue_pair(queue_pair(type)), nullptr) << type;
}

TEST(Refusals, QueuePairsWithExtensionsAreNotMade) {
  auto wanted = queue_pair(IBV_QPT_RC);
  wanted.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
  EXPECT_NE(refuse_queue_pair(wanted), nullptr);
  wanted = queue_pair(IBV_QPT_RC);
  wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  wanted.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
  EXPECT_EQ(refuse_queue_pair(wanted), nullptr);
  wanted.send_ops_flags |= IBV_QP_EX_WITH_BIND_MW;
  EXPECT_NE(refuse_queue_pair(wanted), nullptr);
}

TEST(Refusals, CompletionsWithTimeStampsAreNotMade) {
  ibv_cq_init_attr_ex wanted = {};
  wanted.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_SRC_QP;
  EXPECT_EQ(refuse_completion_queue(wanted), nullptr);
  wanted.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  EXPECT_NE(refuse_completion_queue(wanted), nullptr);
}

TEST(Refusals, MemoryThatCannotBeRegisteredAgainIsRefused) {
  EXPECT_EQ(refuse_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
                          IBV_ACCESS_RELAXED_ORDERING),
            nullptr);
  EXPECT_NE(refuse_memory(IBV_ACCESS_ON_DEMAND), nullptr);
  EXPECT_NE(refuse_memory(IBV_ACCESS_MW_BIND), nullptr);
  EXPECT_NE(refuse_memory(IBV_ACCESS_ZERO_BASED), nullptr);
  EXPECT_NE(refuse_memory(1u << 19), nullptr);
}

TEST(Refusals, SendsThatInvalidateOrBindAreRefused) {
  for (const ibv_wr_opcode opcode :
       {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD})
    EXPECT_EQ(refuse_send(opcode), nullptr) << opcode;
  for (const ibv_wr_opcode opcode :
       {IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WR_TSO})
    EXPECT_NE(refuse_send(opcode), nullptr) << opcode;
}

TEST(Refusals, AlternatePathsAndDrainedQueuesAreRefused) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(refuse_change(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), nullptr);
  EXPECT_NE(refuse_change(attributes, IBV_QP_STATE | IBV_QP_ALT_PATH), nullptr);
  attributes.qp_state = IBV_QPS_SQD;
  EXPECT_NE(refuse_change(attributes, IBV_QP_STATE), nullptr);
}

TEST(Refusals, DevicesDoNotShowWhatIsRefused) {
  ibv_device_attr_ex attributes;
  std::memset(&attributes, 0xff, sizeof(attributes));
  attributes.orig_attr.max_qp_wr = 100;
  attributes.phys_port_cnt_ex = 2;
  hide_refused(attributes, sizeof(attributes));
  EXPECT_EQ(attributes.odp_caps.general_caps, 0u);
  EXPECT_EQ(attributes.xrc_odp_caps, 0u);
  EXPECT_EQ(attributes.max_dm_size, 0u);
  EXPECT_EQ(attributes.phys_port_cnt_ex, 2u);
  EXPECT_EQ(attributes.orig_attr.max_mcast_grp, 0);
  EXPECT_EQ(attributes.orig_attr.max_qp_wr, 99);
  EXPECT_EQ(attributes.orig_attr.device_cap_flags & IBV_DEVICE_XRC, 0u);
}

TEST(Refusals, WriteNothingBehindAShorterStructureOfAnOlderProgram) {
  ibv_device_attr_ex attributes;
  std::memset(&attributes, 0xff, sizeof(attributes));
  const size_t shorter = offsetof(ibv_device_attr_ex, tso_caps);
  hide_refused(attributes, shorter);
  EXPECT_EQ(attributes.tso_caps.max_tso, 0xffffffffu);
}

}  // namespace
}  // namespace ppmr::verbs
