// Destroying the real objects and making them again, here or on another machine. The caller holds
// World::control in all of them.
#pragma once

#include <string>

#include "verbs_library/protocol/message.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Destroys all real objects of the process. Nothing may be in flight, and sends are held back.
// Completions, events and receives are kept. Returns what failed, or an empty text.
std::string destroy_real_objects();

// Makes all of them again: queue pairs in INIT, or in ERR if they were, with their receives. What
// cannot be made reports errors to the program as a dead device does. Returns what failed, or an
// empty text.
std::string make_real_objects();

// Connects a queue pair to the address of its peer. Makes a new real queue pair, because the
// present one was connected to another: the kernel's rxe (6.1) keeps the route of a queue pair even
// when it is reset. Returns 0 or an errno.
int connect_again(Qp& qp, const QueuePairAddress& peer);

// The address for the peer: valid after make_real_objects() or connect_again().
QueuePairAddress address_of(const Qp& qp, const ControlAddress& control);

// As above, for a queue pair that is not connected yet. `name`: by which a peer asked for it.
QueuePairAddress address_of(const Qp& qp, const EndName& name, const ControlAddress& control);

// Moves a queue pair to the error state, for the device and for the program, after its held sends
// have failed.
void end_queue_pair(Qp& qp);

}  // namespace ppmr::verbs
