// One look at a connection: what its link wants, and what the peer has answered.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "verbs_library/move/connection.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The callers hold World::control.

// Advances a connection that is not at rest. Returns when to look again at the latest; Time::max()
// if only a message can change something.
Time tend(Qp& qp, Time now, const ControlAddress& control);

// Returns the answer to a request of a peer. Empty if it is not allowed: the caller then closes the
// connection.
std::optional<Message> answer(const Message& request, const ControlAddress& control);

// The device has ended the connection: the queue pair is in the error state.
bool is_broken(const Qp& qp);

}  // namespace ppmr::verbs
