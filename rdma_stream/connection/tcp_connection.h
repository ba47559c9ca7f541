// Connection, Connector and Listener over TCP.
#pragma once

#include <memory>
#include <string>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Whom a plain connection may reach: without TLS, nobody beyond this machine unless it was asked
// for.
enum class TcpReach { kAnywhere, kLoopback };

// `address` is HOST:PORT or [IPV6]:PORT. Errors: EINVAL for an address that cannot be understood.
// Of connect(): EHOSTUNREACH when the name has no address, EPERM when that is beyond `reach`.
Result<std::unique_ptr<Connector>> tcp_connector(const std::string& address,
                                                 TcpReach reach = TcpReach::kAnywhere);

// Port 0 takes a free one; address() tells which. Errors: as above, and of bind(2): EADDRINUSE when
// another target listens there.
Result<std::unique_ptr<Listener>> tcp_listener(const std::string& address,
                                               TcpReach reach = TcpReach::kAnywhere);

}  // namespace ppmr
