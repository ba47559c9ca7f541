// Before a node runs what another node may still run: a fence command proves that the other node is
// dead, or an operator says so.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// "tls-psk node1" -> "node1", see PeerIdentity::owner().
std::string node_name(const std::string& peer);

// Asks the operator to type the name of the lost node. Errors: ECANCELED.
Status confirm_lost(const std::string& name);

// Runs the command: exit code 0 means that the other node is certainly dead. Nothing to run is a
// success. Errors: EBUSY: the other node may be alive; those of run_command().
Status run_fence(const std::string& fence);

}  // namespace ppmr
