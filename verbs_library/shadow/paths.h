// Address handles, which are the paths of datagrams (queue pairs of type UD).
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// A number that no queue pair has. A datagram to this number completes at the sender, and no queue
// pair receives the datagram.
inline constexpr uint32_t kNoQueuePair = 0xfffffe;

// Returns the real address handle from the present machine to a GID. The first call makes the
// address handle. Returns null, with errno, after an error. The caller holds World::control.
ibv_ah* path_to(Ah& path, const Gid& gid);

// Destroys the real address handles of the path. No queue pair may use them any more. Returns 0 or
// an errno. The caller holds World::control.
int destroy_real_paths(Ah& path);

}  // namespace ppmr::verbs
