// Reads from files.img the sockets of a tree that other programs reach by an address: TCP sockets
// that listen, and UDP sockets with a port.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct BoundSocket {
  int type = 0;  // SOCK_STREAM, SOCK_DGRAM
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
};

// Reads the image. Leaves out addresses that need an interface (link-local ones, also of multicast
// groups), and sockets outside of the node's network namespace. `network`: CRIU's number of this
// namespace (tree_namespaces.h); 0: unknown. Errors: of the file system; EPROTO with the file and
// the fault for a file that CRIU has not written.
Result<std::vector<BoundSocket>> read_bound_sockets(const std::string& path, uint32_t network = 0);
// Parses `bytes`, the content of the file at `path`. Errors: EPROTO as above.
Result<std::vector<BoundSocket>> parse_bound_sockets(const std::string& path, std::string bytes,
                                                     uint32_t network = 0);

// Checks that a socket can be bound to the address here: binds one, and closes it. Errors:
// EADDRNOTAVAIL if this node does not have the address; EADDRINUSE. The message names address and
// port.
Status check_free(const BoundSocket& socket);

}  // namespace ppmr
