// The receive queue. Each receive is copied, because the device must get it again after a move.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_recv of a shadow context. Threads: any.
int post_receive(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad);

// Keeps receives from now on, in place of posting them: there will be no device.
void keep_receives(Qp& qp);

// Posts all receives that are not completed to a new real queue pair, and no longer keeps them.
// Returns 0 or an errno.
int post_receives_again(Qp& qp);

// Completes all receives with an error. For a queue pair without a device.
void fail_receives(Qp& qp);

}  // namespace ppmr::verbs
