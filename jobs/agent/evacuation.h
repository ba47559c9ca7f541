// Moves a job node from this host to another one, with `ppmr source` and `ppmr migrate`. These
// programs decide where the node's processes run, and record the decision. The agent only reads the
// record. So the outcome is the same if the agent or `ppmr migrate` is killed at any moment.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "jobs/agent/host_nodes.h"
#include "jobs/agent/move_limits.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct EvacuationOptions {
  std::string program;          // the path of ppmr
  std::string mounts;           // directory for the mounts, private to root
  std::string state_directory;  // directory of the migrations' records
  uint16_t target_port = 0;     // port of `ppmr target`, the same on every host
  Credentials credentials;
  std::vector<std::string> source_options;  // more options for `ppmr source`
};

enum class MoveResult {
  kMoved,   // the node runs at the target, or will run there
  kStayed,  // the node runs here
  kOpen,    // not known yet: the caller calls move_result() later
};

struct MoveReport {
  MoveResult result = MoveResult::kOpen;
  std::optional<double> downtime_s{};
  std::string error{};  // why the node did not move
};

// Runs the migration with the ID HostNode::migration. Blocks, without a time limit, until `ppmr
// migrate` has ended. Calls `stop` about twice a second. When `stop` returns true, returns kOpen
// and leaves the move running. Threads: any.
MoveReport move_job_node(const EvacuationOptions& options, const HostNode& node,
                         const std::string& to, const MoveLimits& limits,
                         const std::function<bool()>& stop);

// Aborts the move that is in progress with `ppmr migrate --cancel`. Errors: ECANCELED if that
// fails, for example because the move is decided already, with its message; EAGAIN if the move has
// not begun. Threads: any.
Status cancel_move(const EvacuationOptions& options, const HostNode& node);

// Returns the result of the move of `node`, from the record of its migration. Finishes or aborts
// the migration if its processes were killed. If the migration has no record, writes an aborted
// record, so that a `ppmr migrate` that is still checking the hosts cannot begin the move. Threads:
// any.
MoveReport move_result(const EvacuationOptions& options, const HostNode& node);

// Returns whether the node that is expected on this host has run here for longer than `patience`,
// according to the record of its migration. Normally the host that the node left reports the
// arrival to the home. If that host is dead, this host must report it.
bool has_arrived(const EvacuationOptions& options, const HostNode& node,
                 std::chrono::seconds patience);

// Aborts the node's migration to this host, even after this host's vote, and returns when the
// restore has ended. Does nothing without a migration. The caller calls this before it removes a
// node that has not arrived yet and, according to its home, does not belong here. Errors: EBUSY:
// the node is about to run, or the restore has not ended within `patience`. After EBUSY the caller
// tries again later. Threads: any.
Status abort_arrival(const EvacuationOptions& options, const HostNode& node,
                     std::chrono::milliseconds patience = std::chrono::seconds(10));

// Removes the source mount of the node's move. The mount remains if an agent was killed during the
// move.
void remove_source_mount(const EvacuationOptions& options, const HostNode& node);

// Returns the options for CRIU with which job nodes are dumped and restored.
std::vector<std::string> job_node_criu_options();

// Returns the options for `ppmr source` and `ppmr target`.
std::vector<std::string> credential_words(const Credentials& credentials);

}  // namespace ppmr
