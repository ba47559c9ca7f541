// The daemon's part in migrations: none but passing messages on. Each connection that asks for this
// node's agent gets a process of its own (`ppmr migration-agent`, see restart_loader), which knows
// about CRIU, records and restored processes; so that those have nothing to fear from the daemon's
// end, nor the mount from theirs.
#pragma once

#include <atomic>
#include <string>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

struct AgentBridgeOptions {
  std::string mountpoint;
  std::string state_directory;
};

// Threads: any.
class AgentBridge {
 public:
  explicit AgentBridge(AgentBridgeOptions options) : options_(std::move(options)) {}

  // Serves until the connection or the agent ends, or stop(). Errors: of starting the agent, of the
  // connection (its end is none).
  Status serve(Connection& connection, const std::string& node_name);
  // What serves now returns soon, whatever its agent does.
  void stop() { stopping_ = true; }

 private:
  Status pass_messages(Connection& connection, int agent);

  const AgentBridgeOptions options_;
  std::atomic<bool> stopping_{false};
};

}  // namespace ppmr
