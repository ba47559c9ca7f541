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

// All members empty: the container has no port.
struct ContainerPort {
  std::string interface;          // on the node
  std::string bridge;             // on the node
  std::string network_namespace;  // the path of the namespace; for announcing the address

  bool exists() const { return !interface.empty(); }
  // Detaches the port from its bridge. cut() and attach() are idempotent. Errors: ENODEV, EPERM.
  Status cut() const;
  // Attaches the port, and tells the switches where the address is now (gratuitous ARP). No effect
  // if the port is already attached, to whichever bridge.
  Status attach() const;
};

// From the annotations `ppmr.port` and `ppmr.bridge` of the bundle's config.json. Errors: of the
// file system; EPROTO.
Result<ContainerPort> read_container_port(const std::string& bundle);
Result<ContainerPort> parse_container_port(const std::string& config);

}  // namespace ppmr
