// Connection, Connector and Listener over TCP.
#pragma once

#include <memory>
#include <string>

#include "rdma_stream/connection.h"

namespace ppmr {

// `address` is HOST:PORT or [IPV6]:PORT. Errors: EINVAL for an address that cannot be understood,
// EHOSTUNREACH when the name has no address.
Result<std::unique_ptr<Connector>> tcp_connector(const std::string& address);

// Port 0 takes a free one; address() tells which. Errors: as above, and of bind(2): EADDRINUSE when
// another target listens there.
Result<std::unique_ptr<Listener>> tcp_listener(const std::string& address);

}  // namespace ppmr
