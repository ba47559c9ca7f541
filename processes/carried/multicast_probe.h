// Finds the interface that a UDP socket has chosen for multicasts by its index (IP_MULTICAST_IF
// with ip_mreqn). The kernel shows the address that a socket may have chosen, but not the index.
//
// So the socket sends an empty datagram to the group of all hosts, with a TTL of 0: such a datagram
// does not leave the host. A socket of this process gets a copy of it, and with it the interface.
// The interface that a new socket with the same address uses is the usual one, which nobody has to
// choose.
//
// Rejected: a warning for each such socket, because most of them choose nothing.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace ppmr {

// For sockets of the network namespace of this process. Threads: one.
class MulticastProbe {
 public:
  // Returns the index of the interface; 0: the usual one. The process of the socket is frozen. Does
  // not look at, and returns 0 for, sockets without a port, which have sent nothing; those with a
  // pending error or datagram, or with time stamps of what they send; and those that are connected
  // to one other host.
  uint32_t interface_of(int socket);

 private:
  bool open_receiver();
  uint32_t interface_of_datagram(int socket);

  UniqueFd receiver_;
  sockaddr_in address_{};  // of the receiver
};

}  // namespace ppmr
