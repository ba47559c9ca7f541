// Connections that a client has opened and the program has not accepted yet. CRIU cannot dump them:
// they belong to no process. Open MPI connects when a rank first needs another one, and that one
// accepts only when it calls MPI, so a rank that computes leaves them waiting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Returns the ports on which connections wait, from the text of /proc/net/tcp or tcp6. Ignores
// malformed lines. Pure.
std::vector<uint16_t> waiting_ports(const std::string& table);

// Returns the waiting_ports() of a job node on this host. Errors: of entering its network
// namespace.
Result<std::vector<uint16_t>> waiting_ports_of(const std::string& container);

}  // namespace ppmr
