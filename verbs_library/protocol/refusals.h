// Decides what programs may create. The library refuses objects that it could not make again on
// another machine. The reasons are short names for a log; programs get EOPNOTSUPP.
#pragma once

#include <infiniband/verbs.h>

namespace ppmr::verbs {

// Each function returns the name of what it refuses, or nullptr.
const char* refuse_queue_pair(const ibv_qp_init_attr_ex& wanted);
const char* refuse_completion_queue(const ibv_cq_init_attr_ex& wanted);
const char* refuse_memory(unsigned int access);
const char* refuse_send(ibv_wr_opcode opcode);
const char* refuse_change(const ibv_qp_attr& attributes, int mask);

// Remove the capabilities that the library refuses from the attributes of a device. `size_bytes`:
// the size of the caller's structure.
void hide_refused(ibv_device_attr& attributes);
void hide_refused(ibv_device_attr_ex& attributes, size_t size_bytes);

}  // namespace ppmr::verbs
