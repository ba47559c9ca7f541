// `ppmr migration-agent`: serves one connection of a coordinator at the target. Requests
// (migration/relay/agent_requests.h) and replies are JSON objects, one per line, over a socket that
// the daemon passes to the agent. The agent is stateless: everything is in the records, and every
// request is idempotent.
#pragma once

#include <string>

namespace ppmr {

// Returns the incarnation of this target: the boot of the node, and the daemon (by its helper,
// which is the parent of this process). A vote counts in one incarnation only: what it promises is
// in the memory of the node and of the daemon.
std::string incarnation_here();

struct MigrationAgent {
  int fd = 3;
  std::string state_directory;
  std::string mountpoint;
  std::string peer;            // identity of the peer, which owns its checkpoints and records
  std::string audit_file;      // empty: syslog only
  std::string restart_policy;  // path of the file; empty: the defaults of RestartPolicy
  bool allow_root_restart = false;

  // Serves the connection. Returns an exit code when the coordinator has closed the connection.
  int run() const;
};

}  // namespace ppmr
