// Finds the interface that a UDP socket has chosen for multicasts by its index (IP_MULTICAST_IF
// with ip_mreqn). The kernel shows the address that a socket may have chosen, but not the index.
//
// So the probe makes the socket send an empty datagram to the group of all hosts, with a TTL of 0:
// such a datagram does not leave the host. A socket of this process gets a copy of it, and with it
// the interface. The usual interface is the one that a new socket with the same address uses. A
// socket that uses it needs no choice at the target.
//
// Rejected: a warning for each UDP socket that may have chosen an interface. Most have chosen none.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace ppmr {

// Probes sockets of the network namespace of this process. Threads: one.
class MulticastProbe {
 public:
  // Returns the index of the interface; 0: the usual one. The caller has frozen the process of the
  // socket. Does not probe these sockets, and returns 0: a socket without a port, because it has
  // sent nothing; one with a pending error or datagram; one that keeps time stamps of what it
  // sends; and one that is connected to one host.
  uint32_t interface_of(int socket);

 private:
  bool open_receiver();
  uint32_t interface_of_datagram(int socket);

  UniqueFd receiver_;
  sockaddr_in address_{};  // the receiver's address
};

}  // namespace ppmr
