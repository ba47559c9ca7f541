// The options of a source mount.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "daemon/background/idle_clock.h"
#include "daemon/command_line/transport_option.h"
#include "daemon/privilege/confinement.h"
#include "daemon/privilege/privileged_helper.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/session/sender.h"

namespace ppmr {

struct SourceOptions {
  std::string mountpoint;
  std::string target_address;  // empty with --discard
  std::shared_ptr<const Security> security = Security::none();
  bool discard = false;
  size_t chunk_size_bytes = size_t{1} << 20;
  size_t pool_size_bytes = 0;  // 0: the result of pool_size_for()
  TransportOptions transport;
  SenderOptions sender;  // the transport of these options is not used
  // Does the steps for which the daemon has no rights. serve() requires it.
  std::shared_ptr<PrivilegedHelper> helper;
  Confinement confinement;          // only shown in the status
  std::shared_ptr<IdleClock> idle;  // null: the daemon stays when it is idle
  std::chrono::milliseconds reconnect_interval{5000};
};

}  // namespace ppmr
