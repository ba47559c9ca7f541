// What must precede a start of processes that a lost node may still run: a fence command proves
// that the other node is dead, or an operator confirms it.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the name of the node in an identity: "node1" of "tls-psk node1", see
// PeerIdentity::owner().
std::string node_name(const std::string& peer);

// Asks the operator to type the name of the lost node. Errors: ECANCELED.
Status confirm_lost(const std::string& name);

// Runs the fence command, whose exit code 0 means that the other node is certainly dead. Succeeds
// if `fence` is empty. Errors: EBUSY: the other node may be alive; those of run_command().
Status run_fence(const std::string& fence);

}  // namespace ppmr
