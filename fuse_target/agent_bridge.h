// The daemon's part in migrations: it passes messages between a coordinator and an agent. Each
// connection that requests an agent gets its own process (`ppmr migration-agent`, see
// restart_loader), which drives CRIU and writes records. The privileged helper starts it. Agents
// are separate processes, so that the end of the daemon does not affect restored processes, and the
// crash of an agent not the mount; and they are privileged, which the daemon is not.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "daemon/privilege/privileged_helper.h"
#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Threads: any.
class AgentBridge {
 public:
  explicit AgentBridge(std::shared_ptr<PrivilegedHelper> helper) : helper_(std::move(helper)) {}

  // Serves until the connection or the agent ends, or stop() is called. Returns success when the
  // connection ends. Errors: of starting the agent, of the agent, of the connection.
  Status serve(Connection& connection, const std::string& node_name);
  // Makes serve() return as soon as its agent has finished the present request.
  void stop() { stopping_ = true; }

 private:
  Status pass_messages(Connection& connection, int agent);

  const std::shared_ptr<PrivilegedHelper> helper_;
  std::atomic<bool> stopping_{false};
};

}  // namespace ppmr
