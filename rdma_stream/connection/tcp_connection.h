// Connection, Connector and Listener over TCP.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "rdma_stream/connection/connection.h"

namespace ppmr {

// The errno if the name service of this node returns no address for the name of a host. It says
// nothing about the host itself. connect(2) never returns it.
inline constexpr int kNoAddress = EDESTADDRREQ;

// Returns the error for a name without an address. `code`: the result of getaddrinfo(3). Pure.
Error no_address_error(const std::string& address, int code);

// The addresses allowed for a plain connection.
enum class TcpReach { kAnywhere, kLoopback };

// Begins a connection to the `number`-th address of a name. Errors: ENOENT when there are no more
// addresses.
using Dial = std::function<Result<UniqueFd>(size_t number)>;

// Checks the syntax, HOST:PORT, and resolves no name. Errors: EINVAL.
Status check_address(const std::string& address);

// `address` is HOST:PORT or [IPV6]:PORT. `dial` connects for a process that may not connect itself;
// by default the connector connects. Errors: EINVAL for a malformed address. Errors of connect():
// kNoAddress, and EPERM when `reach` excludes the address.
Result<std::unique_ptr<Connector>> tcp_connector(const std::string& address,
                                                 TcpReach reach = TcpReach::kAnywhere,
                                                 Dial dial = {});

// Returns a non-blocking socket that is connected or is about to be. Errors: those of Dial,
// connect() and connect(2).
Result<UniqueFd> begin_to_connect(const std::string& address, TcpReach reach, size_t number);

// Port 0 selects a free port, which address() returns. An empty host: all addresses of IPv6 and
// IPv4. Errors: EINVAL, kNoAddress and EPERM as for tcp_connector(); those of bind(2), such as
// EADDRINUSE when another target listens there.
Result<std::unique_ptr<Listener>> tcp_listener(const std::string& address,
                                               TcpReach reach = TcpReach::kAnywhere);

// Returns whether a peer with this round trip is in the same data centre. There cubic is faster
// than a congestion control that paces with timers.
bool is_near(std::chrono::microseconds round_trip);
// Makes the socket use cubic. Needs CAP_NET_ADMIN if the system does not allow cubic to all users.
// Without that right it has no effect.
void use_cubic(int socket);

// Returns the round trip of a TCP handshake with HOST:PORT, as the kernel has measured it.
// Connects, sends no bytes and closes. Errors: those of connect(); EOPNOTSUPP when the kernel has
// not measured it.
Result<std::chrono::microseconds> measure_round_trip(const std::string& address,
                                                     std::chrono::milliseconds timeout);

// Returns whether all addresses of HOST:PORT are loopback addresses. An empty host means all
// addresses of this node. Errors: EINVAL, kNoAddress.
Result<bool> is_loopback_address(const std::string& address);

}  // namespace ppmr
