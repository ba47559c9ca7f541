// A network namespace that reaches no other node. The rehearsal of a restore runs in it, because
// the original still uses the same addresses and connections.
#pragma once

#include "base/result.h"

namespace ppmr {

// Moves this process to a new network namespace. The new namespace has the addresses of the present
// one, so that sockets can be bound to them. Where the kernel has /dev/net/tun, it also has
// interfaces of the same names. Packets to other nodes go to the loopback device, which drops them.
// The new namespace lacks other routes, packet filters, and addresses that are valid on one link
// only. Errors: those of the kernel. After an error this process may already be in the new
// namespace, so it should end.
Status enter_lonely_network();

}  // namespace ppmr
