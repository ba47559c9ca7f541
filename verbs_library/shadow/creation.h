// Making the objects, and making their real counterparts again.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operations of a shadow context. Null with errno; EOPNOTSUPP for what cannot move.
ibv_qp* create_queue_pair(ibv_context* context, ibv_qp_init_attr_ex* wanted);
ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* wanted);

// The caller of all these holds World::control. They return 0 or an errno.
int make_real_channel(Channel& channel);
int make_real_completion_queue(Cq& cq);
int make_real_region(Mr& region);

// Whether the kernel can be told what a device has written (Linux 5.14).
bool can_show_writes();
// Call it after the deregistration. Makes the kernel mark each page that a device may have written
// as written by the process. A device does not use the page tables, so a live move, which tracks
// writes there, has not seen its writes. Leaves out what the program has unmapped. Does nothing on
// a kernel that cannot be told. Returns 0, or an errno if a page is no longer writable.
int show_writes(const Mr& region);
// The new queue pair is in the state RESET. It takes the place of `qp.real`, which is null or is
// destroyed by the caller.
ibv_qp* new_real_queue_pair(Qp& qp);

// How often a number that is taken is drawn again.
inline constexpr int kDrawsMax = 4096;

}  // namespace ppmr::verbs
