// Address handles: the paths of UD.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// A number that no queue pair has: a datagram to it completes and arrives nowhere.
inline constexpr uint32_t kNoQueuePair = 0xfffffe;

// The real address handle from the present machine to a GID, made at the first call. Null with
// errno. The caller holds World::control.
ibv_ah* path_to(Ah& path, const Gid& gid);

// Destroys the real ones. Returns 0 or an errno. The caller holds World::control, and no queue pair
// uses them.
int destroy_real_paths(Ah& path);

}  // namespace ppmr::verbs
