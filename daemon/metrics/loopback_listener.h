// The listening socket of --metrics. It is bound to a loopback address, so only programs on this
// machine reach it.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Checks that an address is "127.0.0.1:PORT" or "[::1]:PORT". Errors: EINVAL. Threads: any.
Status check_metrics_address(const std::string& address);

// Opens the listening socket. Errors: EINVAL; the errors of the system calls, such as EADDRINUSE.
// Threads: any.
Result<UniqueFd> listen_on_loopback(const std::string& address);

}  // namespace ppmr
