#include "verbs_library/shadow/doorbell.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

namespace ppmr::verbs {

bool ring_doorbell(const ibv_qp& real_qp) {
  constexpr int kAttributes = 3;
  // The header ends in an array of unknown length.
  alignas(ib_uverbs_ioctl_hdr) unsigned char
      command[sizeof(ib_uverbs_ioctl_hdr) + kAttributes * sizeof(ib_uverbs_attr)] = {};
  auto& header = *reinterpret_cast<ib_uverbs_ioctl_hdr*>(command);
  auto* attributes = reinterpret_cast<ib_uverbs_attr*>(command + sizeof(ib_uverbs_ioctl_hdr));
  ib_uverbs_post_send input = {};
  ib_uverbs_post_send_resp output = {};
  input.qp_handle = real_qp.handle;
  input.wr_count = 0;  // passes no requests, because they are in the queue already
  input.wqe_size = sizeof(ib_uverbs_send_wr);
  header.length = sizeof(command);
  header.object_id = UVERBS_OBJECT_DEVICE;
  header.method_id = UVERBS_METHOD_INVOKE_WRITE;
  header.num_attrs = kAttributes;
  header.driver_id = RDMA_DRIVER_RXE;
  const auto set = [&](int index, uint16_t id, uint16_t length, const void* data) {
    ib_uverbs_attr& attribute = attributes[index];
    attribute.attr_id = id;
    attribute.len = length;
    attribute.flags = UVERBS_ATTR_F_MANDATORY;
    attribute.data = reinterpret_cast<uint64_t>(data);
  };
  set(0, UVERBS_ATTR_WRITE_CMD, sizeof(uint64_t), nullptr);
  attributes[0].data = IB_USER_VERBS_CMD_POST_SEND;
  set(1, UVERBS_ATTR_CORE_IN, sizeof(input), &input);
  set(2, UVERBS_ATTR_CORE_OUT, sizeof(output), &output);
  return ioctl(real_qp.context->cmd_fd, RDMA_VERBS_IOCTL, command) == 0;
}

}  // namespace ppmr::verbs
