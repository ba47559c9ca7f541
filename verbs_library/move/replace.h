// Destroys the real objects, and makes them again here or on another machine. The callers of all
// functions hold World::control.
#pragma once

#include <string>

#include "verbs_library/protocol/message.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Destroys all real objects of the process. Nothing may be in flight, and sends must be held back.
// Keeps completions, events and receives. Returns what failed, or an empty text.
std::string destroy_real_objects();

// Makes all real objects again. Queue pairs have their receives, and are in INIT, or in ERR if they
// were in ERR. An object that cannot be made reports errors to the program, like an object of a
// dead device. Returns what failed, or an empty text.
std::string make_real_objects();

// Connects a queue pair to the address of its peer. If the present real queue pair was connected
// before, makes a new one: the kernel's rxe (6.1) keeps the route of a queue pair even after a
// reset. Returns 0 or an errno.
int connect_again(Qp& qp, const QueuePairAddress& peer);

// Returns the address for the peer. Call it only after make_real_objects() or connect_again().
QueuePairAddress address_of(const Qp& qp, const ControlAddress& control);

// Returns the address of a queue pair that is not connected yet. `name`: the name by which a peer
// has asked for it.
QueuePairAddress address_of(const Qp& qp, const EndName& name, const ControlAddress& control);

// Completes the held sends with errors, and moves the queue pair to the error state, for the device
// and for the program.
void end_queue_pair(Qp& qp);

}  // namespace ppmr::verbs
