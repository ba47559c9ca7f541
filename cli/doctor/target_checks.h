// The way to a target, and what the target says.
//
// The checks use the handshake of `ppmr migrate` and its question before a migration. So they leave
// no session, checkpoint or record; the target's audit trail shows the connection.
#pragma once

#include <chrono>
#include <string>

#include "cli/doctor/diagnosis.h"
#include "preflight/node_facts.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct TargetQuestion {
  std::string address;  // HOST:PORT
  Credentials credentials;
  // Of each step: connecting, the handshake, the first byte of the answer.
  std::chrono::milliseconds patience{3000};
};

// Stops at the first step that fails, because no later one can succeed. `here`: of this node.
// Threads: any.
// `ahead_ns`: how far the target's clock is ahead of this one.
Diagnosis compare_clocks(int64_t ahead_ns);

Diagnoses check_target(const TargetQuestion& question, const NodeFacts& here);

// Compares what the two nodes have: kernel, processor, CRIU, memory.
Diagnoses compare_nodes(const NodeFacts& here, const NodeFacts& target);

}  // namespace ppmr
