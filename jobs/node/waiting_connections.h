// Connections that a client has opened and the program has not accepted yet. CRIU cannot dump them,
// because they belong to no process. A rank of Open MPI connects to another rank when it needs it
// for the first time. The other rank accepts the connection only when it calls MPI. So connections
// wait while a rank computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Returns the ports on which connections wait, from the text of /proc/net/tcp or tcp6. Ignores
// malformed lines. Pure.
std::vector<uint16_t> waiting_ports(const std::string& table);

// Returns the waiting_ports() of a job node on this host. Errors: those of in_namespace().
Result<std::vector<uint16_t>> waiting_ports_of(const std::string& container);

}  // namespace ppmr
