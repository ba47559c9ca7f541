// The sockets of a network namespace, as the kernel lists them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

// A line of /proc/PID/net/{tcp,tcp6,udp,udp6}.
struct InternetSocket {
  std::string protocol;  // "tcp" or "udp"
  std::string local_address;
  uint16_t local_port = 0;
  std::string remote_address;
  uint16_t remote_port = 0;
  int state = 0;       // 1: established, 10: listening (include/net/tcp_states.h)
  uint64_t inode = 0;  // 0: belongs to nobody any more

  bool listens() const { return protocol == "tcp" && state == 10; }
  // Has, or had, another end: anything of TCP that neither listens nor is new or closed.
  bool is_connection() const { return protocol == "tcp" && state != 10 && state != 7; }
};

// An AF_UNIX socket.
struct UnixSocket {
  int type = 0;       // SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET
  std::string path;   // as bound; "@x" in the abstract name space
  uint64_t peer = 0;  // the inode of the other end; 0: none
  bool listens = false;
};
using UnixSockets = std::map<uint64_t, UnixSocket>;  // by inode

std::vector<InternetSocket> parse_internet_sockets(std::string_view text,
                                                   const std::string& protocol);

// Of the network namespace that the process is in. Errors: ESRCH, EACCES.
Result<std::vector<InternetSocket>> read_internet_sockets(pid_t pid);
// Asked by netlink (sock_diag(7)): /proc/net/unix does not tell who is connected with whom. Errors:
// also EPERM when that namespace may not be entered.
Result<UnixSockets> read_unix_sockets(pid_t pid);

}  // namespace ppmr
