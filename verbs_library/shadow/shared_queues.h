// Shared receive queues. The library copies each receive, because it must post it again after a
// move.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_srq_recv of a shadow context. Threads: any.
int post_shared_receive(ibv_srq* srq, ibv_recv_wr* requests, ibv_recv_wr** bad);

// From now on keeps receives and does not post them, because there will be no device.
void keep_shared_receives(Srq& srq);

// Makes the real queue, posts all receives that have not completed, in order, and requests the
// event for the limit again. The caller holds World::control. Returns 0 or an errno.
int make_real_shared_queue(Srq& srq);

// Notes that the device has reported the limit, which it does only once.
void note_limit_reached(Srq& srq);

}  // namespace ppmr::verbs
