// Checks the connection to a target, and compares the answers of the target with this node.
//
// The checks use the handshake and the preflight of `ppmr migrate`. So they leave no session,
// checkpoint or record. The target's audit trail shows the connection.
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
  // Time limit of each step: connecting, the handshake, the first byte of the answer.
  std::chrono::milliseconds patience{3000};
};

// `ahead_ns`: how far the target's clock is ahead of the clock of this node. Threads: any.
Diagnosis compare_clocks(int64_t ahead_ns);

// Stops at the first step that fails, because no later step can succeed. `here`: the facts of this
// node. Threads: any.
Diagnoses check_target(const TargetQuestion& question, const NodeFacts& here);

// Compares the kernels, processors, CRIUs and memory of the two nodes.
Diagnoses compare_nodes(const NodeFacts& here, const NodeFacts& target);

}  // namespace ppmr
