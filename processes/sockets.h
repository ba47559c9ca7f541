// The sockets of a network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

// A line of /proc/PID/net/{tcp,tcp6,udp,udp6}.
struct InternetSocket {
  std::string protocol;  // "tcp" or "udp"
  std::string local_address;
  uint16_t local_port = 0;
  std::string remote_address;
  uint16_t remote_port = 0;
  int state = 0;         // 1: established, 10: listening (include/net/tcp_states.h)
  uint64_t inode = 0;    // 0: no process has the socket open
  uint32_t waiting = 0;  // of a listening socket: connections that its program has not accepted

  bool listens() const { return protocol == "tcp" && state == 10; }
  // Returns whether this is a TCP socket that has or had a peer: neither listening nor closed.
  bool is_connection() const { return protocol == "tcp" && state != 10 && state != 7; }
};

// An AF_UNIX socket.
struct UnixSocket {
  int type = 0;       // SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET
  std::string path;   // bound path; "@x": in the abstract namespace
  uint64_t peer = 0;  // inode of the connected socket; 0: none
  bool listens = false;
  uint32_t unread_bytes = 0;           // bytes that it has sent and its peer has not read
  std::vector<uint64_t> waiting = {};  // sockets whose connections the program has not accepted
};
using UnixSockets = std::map<uint64_t, UnixSocket>;  // key: inode

std::vector<InternetSocket> parse_internet_sockets(std::string_view text,
                                                   const std::string& protocol);

// Lists the sockets in the network namespace of the process. Errors: ESRCH, EACCES.
Result<std::vector<InternetSocket>> read_internet_sockets(pid_t pid);
// Lists the Unix sockets in the network namespace of the process. Uses netlink (sock_diag(7)),
// because /proc/net/unix does not show peers. Errors: ESRCH, EACCES; EPERM without permission to
// enter the network namespace.
Result<UnixSockets> read_unix_sockets(pid_t pid);

}  // namespace ppmr
