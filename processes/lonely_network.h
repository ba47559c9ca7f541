// A network namespace that reaches nobody, for the rehearsal of a restore: the same addresses and
// connections are in use elsewhere meanwhile.
#pragma once

#include "base/result.h"

namespace ppmr {

// Moves this process to a new network namespace. It has the addresses of the present one, so that
// sockets can be bound to them, and its interfaces by name, where the kernel has /dev/net/tun. Each
// route to another node leads to the loopback device, which drops such packets. Not there: other
// routes, filters of packets, and addresses that are valid on one link only. Errors: of the kernel.
// Then this process may be in the new namespace already, and should end.
Status enter_lonely_network();

}  // namespace ppmr
