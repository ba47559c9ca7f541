// TCP connections in the kernel's repair mode (TCP_REPAIR in tcp(7)), in which CRIU reads them.
//
// A connection in repair mode sends nothing, and its process gets EPERM when it reads. CRIU ends
// the mode before it lets the process go. If CRIU is killed, the mode stays on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// One end of a connection. An IPv4 address that an IPv6 socket maps is an IPv4 address here.
struct ConnectionEnd {
  std::string address;  // 4 or 16 bytes
  uint16_t port = 0;
};

struct TcpConnection {
  ProcessIdentity process;
  bool is_in_repair = false;
  UniqueFd socket;  // a copy of the process's descriptor
  ConnectionEnd local;
  ConnectionEnd remote;
};

// Returns "10.0.0.1:80" or "[fe80::1]:80". Pure.
std::string text_of(const ConnectionEnd& end);

// Returns the TCP connections of these processes, each once. Skips processes that have ended.
// Errors: EACCES; those of open_pidfd() except ESRCH; those of pidfd_getfd(2).
Result<std::vector<TcpConnection>> read_connections(const std::vector<ProcessIdentity>& tasks);

// Ends the repair mode. The kernel then sends a probe, so the peer retransmits what was lost.
// Errors: those of setsockopt(2), with both ends.
Status end_repair(const TcpConnection& connection);

}  // namespace ppmr
