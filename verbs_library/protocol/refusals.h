// What programs may create, and what is refused because it could not be made again elsewhere. The
// reasons are short names for a log; programs get EOPNOTSUPP.
#pragma once

#include <infiniband/verbs.h>

namespace ppmr::verbs {

// Each returns the name of what is refused, or nullptr.
const char* refuse_queue_pair(const ibv_qp_init_attr_ex& wanted);
const char* refuse_completion_queue(const ibv_cq_init_attr_ex& wanted);
const char* refuse_memory(unsigned int access);
const char* refuse_send(ibv_wr_opcode opcode);
const char* refuse_change(const ibv_qp_attr& attributes, int mask);

// The capabilities of a device without those that are refused.
void hide_refused(ibv_device_attr& attributes);
void hide_refused(ibv_device_attr_ex& attributes, size_t size_bytes);

}  // namespace ppmr::verbs
