// Shared receive queues. Each receive is copied, because the device must get it again after a move.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_srq_recv of a shadow context. Threads: any.
int post_shared_receive(ibv_srq* srq, ibv_recv_wr* requests, ibv_recv_wr** bad);

// Keeps receives from now on, in place of posting them: there will be no device.
void keep_shared_receives(Srq& srq);

// Makes the real queue, posts all receives that are not completed, in order, and asks for the
// limit's event again. The caller holds World::control. Returns 0 or an errno.
int make_real_shared_queue(Srq& srq);

// The device has reported the limit: it reports it once.
void note_limit_reached(Srq& srq);

}  // namespace ppmr::verbs
