// The states of a host in a job, and of a job node. Pure functions: no clock, no network.
// docs/jobs.md has the picture. The names of the first states come from the paper "RDMA-Based Job
// Migration Framework for MPI over InfiniBand" (Cluster 2010).
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace ppmr {

enum class HostState {
  kReady,     // has a node of the job
  kSpare,     // can take a node
  kMoving,    // its node leaves, or a node is on its way to it
  kOut,       // was evacuated: takes no node until `ppmr job return`
  kInactive,  // takes no node: it could not prepare for one, its job agent is away, or the home
              // does not find its address
  kLost,      // does not answer; never in a record
};

enum class HostEvent {
  kNodeLeaves,     // a move of its node begins
  kChosen,         // the home has chosen it for a node that moves
  kNodeLeft,       // its node runs elsewhere
  kNodeStayed,     // its node did not move
  kNodeArrived,    // the node for which it was chosen runs on it
  kNodeStayedOff,  // the node for which it was chosen did not move
  kFailed,         // it could not prepare for the node
  kTakenOut,       // the host says that it is out of the pool
  kDied,           // it is certainly dead, and its job was rolled back without it
  kTakesLostNode,  // a node of a dead host runs on it
  kReturned,       // the host says that it was returned to the pool
};

// What the home knows about a host besides the host's recorded state.
enum class Contact {
  kAnswers,  // answers, or was never asked
  kAway,     // refuses connections: the host lives, but its job agent does not run
  kSilent,   // does not answer
  kUnknown,  // cannot be asked, because this node does not find its address
};

enum class NodeState {
  kReady,
  kMoving,
  kLost,  // its host does not answer
};

const char* to_string(HostState state);
const char* to_string(NodeState state);
// Returns the state with this name, or nullopt.
std::optional<HostState> parse_host_state(const std::string& name);

// Returns the recorded state after the event. Errors: EPERM: the event does not fit the state.
Result<HostState> host_step(HostState recorded, HostEvent event);
// Returns the state that users see.
HostState shown_state(HostState recorded, Contact contact);
// `shown`: the state of the node's host.
NodeState node_state(bool moves, HostState shown);

}  // namespace ppmr
