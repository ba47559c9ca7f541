// Carries out the protocol of connections (protocol/link.h): sends the requests of the link, and
// answers the requests of peers.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "verbs_library/move/connection.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The callers hold World::control.

// Advances a connection that is not open and at rest. Returns the latest time for the next call;
// Time::max() if only a message can change something.
Time tend(Qp& qp, Time now, const ControlAddress& control);

// Returns the answer to a request of a peer. Returns nullopt if the request is not permitted; the
// caller then closes the connection.
std::optional<Message> answer(const Message& request, const ControlAddress& control);

// Returns whether the queue pair has failed, so that its connection has ended.
bool is_broken(const Qp& qp);

}  // namespace ppmr::verbs
