// Makes the objects that programs see, and makes their real counterparts again.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operations of a shadow context. After an error they return null, with errno; EOPNOTSUPP for
// an object that cannot move.
ibv_qp* create_queue_pair(ibv_context* context, ibv_qp_init_attr_ex* wanted);
ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* wanted);

// The callers of the functions below hold World::control. They return 0 or an errno, unless a
// comment says otherwise.
int make_real_channel(Channel& channel);
int make_real_completion_queue(Cq& cq);
int make_real_region(Mr& region);

// Returns whether the kernel has MADV_POPULATE_WRITE (Linux 5.14), which show_writes() needs.
bool can_show_writes();
// Makes the kernel mark each page of a region that a device may have written as written by the
// process. A live move tracks writes in the page tables, which a device does not use. So the move
// has not seen the device's writes. The caller must have deregistered the region. Leaves out pages
// that the program has unmapped. Does nothing on a kernel without can_show_writes(). Returns 0, or
// an errno if a page is no longer writable.
int show_writes(const Mr& region);
// Returns a new real queue pair in the state RESET; null, with errno, after an error. It is meant
// to replace `qp.real`, which is null, or which the caller destroys.
ibv_qp* new_real_queue_pair(Qp& qp);

// How often the library makes an object again because its number is taken.
inline constexpr int kDrawsMax = 4096;

}  // namespace ppmr::verbs
