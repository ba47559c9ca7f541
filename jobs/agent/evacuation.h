// Moves a job node from this host to another one, with `ppmr source` and `ppmr migrate`. Those
// decide where its processes run, and keep a record of it; the agent only reads the record. So an
// agent, or a `ppmr migrate`, that is killed at any moment changes nothing about the outcome.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "jobs/agent/host_nodes.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct EvacuationOptions {
  std::string program;          // the path of ppmr
  std::string mounts;           // directory for the mounts, private to root
  std::string state_directory;  // of the migrations' records
  uint16_t target_port = 0;     // of `ppmr target` on every host
  Credentials credentials;
  std::vector<std::string> source_options;  // more options for `ppmr source`
};

enum class MoveResult {
  kMoved,   // it runs at the target, or will
  kStayed,  // it runs here
  kOpen,    // not known yet: ask again, see move_result()
};

struct MoveReport {
  MoveResult result = MoveResult::kOpen;
  double downtime_s = -1;  // negative: unknown
  std::string error{};     // why it did not move
};

// Blocks until the migration is decided, or open. Threads: any.
MoveReport move_job_node(const EvacuationOptions& options, const HostNode& node,
                         const std::string& to);

// The IDs of the node's migrations from this host. Errors: a record cannot be read.
Result<std::vector<std::string>> migrations_of(const EvacuationOptions& options,
                                               const HostNode& node);

// What the records say about the move that `node` began; finishes or aborts it if its processes
// were killed. Threads: any.
MoveReport move_result(const EvacuationOptions& options, const HostNode& node);

// Call before removing a node that has not arrived yet. Aborts its migration to this host, and
// returns when the restore has ended. No effect without a migration. Errors: EBUSY: this host has
// voted, so the source decides; the node is about to run; or the restore has not ended within
// `patience`. Try again later. Threads: any.
Status abort_arrival(const EvacuationOptions& options, const HostNode& node,
                     std::chrono::milliseconds patience = std::chrono::seconds(10));

// Removes the mount that an agent left which was killed during the move.
void remove_source_mount(const EvacuationOptions& options, const HostNode& node);

// The options for `ppmr source` and `ppmr target`.
std::vector<std::string> credential_words(const Credentials& credentials);

}  // namespace ppmr
