// Checks the key files and certificates of a node.
#pragma once

#include <chrono>
#include <string>

#include "cli/doctor/diagnosis.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

// Checks owner, permissions and content of every file that `credentials` names, and the expiry of
// the certificates. Never shows the content of a key. `now`: seconds since 1970.
Diagnoses check_credentials(const Credentials& credentials, int64_t now);

}  // namespace ppmr
