// The network of jobs on this host: a network namespace for each job node, joined to a bridge by a
// veth pair. The bridge connects the host to the other hosts: it contains a network interface that
// is reserved for jobs, or a VXLAN device. The administrator makes the bridge.
//
// The MAC address of a node follows from its IP address, so that it is the same on every host that
// the node visits.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "restart_loader/containers/container_port.h"

namespace ppmr {

struct JobNetwork {
  std::string bridge;  // on this host
  int prefix_bits = 8;
  int mtu_bytes = 0;  // 0: the MTU of the bridge
};

// Returns the port of a job node: its interface on the host, the bridge, and the namespace that has
// the other end of the pair.
ContainerPort port_of(const JobNetwork& network, const std::string& container,
                      const std::string& address);

// Returns the MTU of the bridge. Errors: ENODEV if this host has no such network interface.
Result<int> bridge_mtu_bytes(const std::string& bridge);

// Makes the namespace, the veth pair and the address. The port is up, but not attached to the
// bridge. Errors: EEXIST; ECHILD with the output of ip(8). After an error nothing remains.
Status create_port(const JobNetwork& network, const std::string& container,
                   const std::string& address);

// Makes the addresses of `hosts` (NodeSpec::hosts) permanent neighbours of the namespace. So no
// host asks for them by broadcast, and the kernel does not count them among its other neighbours,
// which it limits by default to 1024 for the whole host. Writes commands for ip(8) to `file`.
// Errors: ECHILD with the output of ip(8).
Status add_neighbours(const std::string& container, const std::string& hosts,
                      const std::string& file);

// Runs `work` in the network namespace of the container. Errors: those of open(2), setns(2) and
// `work`.
Status in_namespace(const std::string& container, const std::function<Status()>& work);

// Removes the namespace and, with it, the veth pair. Idempotent.
Status remove_port(const std::string& container);

// Connects to the command port of a job node (jobs/command) from within a port's namespace. Errors:
// those of connect_to_job_node().
Result<UniqueFd> connect_through_port(const std::string& container, const std::string& address,
                                      std::chrono::milliseconds timeout);

// Returns 02:00 and the bytes of the address. 02 marks a locally administered address.
std::string mac_of(const std::string& address);

}  // namespace ppmr
