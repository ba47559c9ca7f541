// The helper thread of the library. It answers the requests of ppmr (jobs/rdma_release.h) and of
// peers, and leads the connections of this process through moves of this process and of its peers.
// It sleeps while nothing moves.
#pragma once

#include "verbs_library/protocol/message.h"

namespace ppmr::verbs {

// Starts the helper thread unless it runs. The library calls this when the program opens a device;
// in a forked child, this starts a new thread.
void start_helper();

// Wakes the helper thread, because something has changed that it must handle.
void wake_helper();

// Returns the address at which peers reach this process. The caller holds World::control.
const ControlAddress& control_address();

}  // namespace ppmr::verbs
