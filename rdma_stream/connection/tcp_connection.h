// Connection, Connector and Listener over TCP.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

// The addresses allowed for a plain connection.
enum class TcpReach { kAnywhere, kLoopback };

// `address` is HOST:PORT or [IPV6]:PORT. Errors: EINVAL for a malformed address. Errors of
// connect(): EHOSTUNREACH when the name has no address, EPERM when `reach` excludes the address.
Result<std::unique_ptr<Connector>> tcp_connector(const std::string& address,
                                                 TcpReach reach = TcpReach::kAnywhere);

// Port 0 selects a free port, which address() returns. Errors: EINVAL, EHOSTUNREACH and EPERM as
// for tcp_connector(), and those of bind(2): EADDRINUSE when another target listens there.
Result<std::unique_ptr<Listener>> tcp_listener(const std::string& address,
                                               TcpReach reach = TcpReach::kAnywhere);

// The round trip of a TCP handshake with HOST:PORT, as the kernel has measured it. Connects, sends
// nothing and closes. Errors: as connect(); EOPNOTSUPP when the kernel has not measured it.
Result<std::chrono::microseconds> measure_round_trip(const std::string& address,
                                                     std::chrono::milliseconds timeout);

// Whether all addresses of HOST:PORT are loopback addresses. An empty host means all addresses of
// this node. Errors: EINVAL, EHOSTUNREACH.
Result<bool> is_loopback_address(const std::string& address);

}  // namespace ppmr
