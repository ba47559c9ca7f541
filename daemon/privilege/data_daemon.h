// What both data daemons may still do after their set-up.
#pragma once

#include "daemon/command_line/transport_option.h"
#include "daemon/privilege/confinement.h"
#include "daemon/privilege/landlock.h"

namespace ppmr {

// Whether this node has RDMA devices and the options allow their use.
bool may_use_verbs(const TransportOptions& options);

// /dev/null, for what goes nowhere, and RDMA devices.
LandlockRules daemon_rules(const TransportOptions& options);

void warn_without_landlock(const Confinement& confinement);

}  // namespace ppmr
