// The daemon's part in migrations: it passes messages between a coordinator and an agent. Each
// connection that requests an agent gets a process of its own (`ppmr migration-agent`, see
// restart_loader), which drives CRIU and writes records. The privileged helper starts this process.
// Agents are separate processes for three reasons: the end of the daemon does not affect restored
// processes, the crash of an agent does not affect the mount, and agents need privileges that the
// daemon does not have.
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
  // connection ends. Errors: those of starting the agent, of the agent, and of the connection.
  Status serve(Connection& connection, const std::string& node_name);
  // Makes serve() return as soon as its agent has finished the current request.
  void stop() { stopping_ = true; }

 private:
  Status pass_messages(Connection& connection, int agent);

  const std::shared_ptr<PrivilegedHelper> helper_;
  std::atomic<bool> stopping_{false};
};

}  // namespace ppmr
