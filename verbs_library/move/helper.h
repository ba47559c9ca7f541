// The thread of the library: answers ppmr's requests (jobs/rdma_release.h) and the peers, and leads
// the connections of this process through moves, its own and those of the peers. It sleeps while
// nothing moves.
#pragma once

#include "verbs_library/protocol/message.h"

namespace ppmr::verbs {

// Starts it, if it does not run. Called when a device was opened, also again in a forked child.
void start_helper();

// Something has changed that it has to look at.
void wake_helper();

// Where peers reach this process. The caller holds World::control.
const ControlAddress& control_address();

}  // namespace ppmr::verbs
