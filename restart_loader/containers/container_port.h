// The switch port of a container that has a network namespace and an address of its own.
//
// The address moves with the container. The container has a port on each of the two nodes, and at
// most one of them may be attached to a bridge. Otherwise the kernel of the node that the container
// has left answers the container's peers with a reset.
// The port is the node's end of a veth pair; the other end is in the container's namespace.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace ppmr {

// If all members are empty, the container has no port.
struct ContainerPort {
  std::string interface;  // the port's name on the node
  std::string bridge;     // the bridge's name on the node
  // Path of the namespace; attach() announces the address from there.
  std::string network_namespace;

  bool exists() const { return !interface.empty(); }
  // Detaches the port from its bridge. cut() and attach() are idempotent. Errors: ENODEV, EPERM.
  Status cut() const;
  // Attaches the port, and announces to the switches where the address is now (gratuitous ARP). Has
  // no effect if the port is already attached to any bridge.
  Status attach() const;
};

// Reads the annotations `ppmr.port` and `ppmr.bridge` of the bundle's config.json. Errors: of the
// file system; EPROTO.
Result<ContainerPort> read_container_port(const std::string& bundle);
Result<ContainerPort> parse_container_port(const std::string& config);

}  // namespace ppmr
