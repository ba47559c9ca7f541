// The receive queue. The library copies each receive, because it must post it again after a move.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_recv of a shadow context. Threads: any.
int post_receive(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad);

// From now on keeps receives and does not post them, because there will be no device.
void keep_receives(Qp& qp);

// Posts all receives that have not completed to a new real queue pair, and ends keep_receives().
// Returns 0 or an errno.
int post_receives_again(Qp& qp);

// Completes all receives with an error, for a queue pair without a device.
void fail_receives(Qp& qp);

}  // namespace ppmr::verbs
