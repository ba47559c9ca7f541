// Devices, and their real counterparts on the machine on which the process runs now.
#pragma once

#include <string>
#include <vector>

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Opens the real device that takes the place of `device` on the present machine. Returns null, with
// errno, after an error.
ibv_context* open_real_device(const Device& device);

// Returns the GIDs of the port that are set.
std::vector<GidEntry> read_gids(ibv_context* real_context, uint32_t port);

// Adds the real context's asynchronous events to the descriptor of the program, without blocking.
void attach_device_events(Context& context);

}  // namespace ppmr::verbs
