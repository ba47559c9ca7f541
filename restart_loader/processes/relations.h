// What processes share with others. CRIU dumps one tree and keeps what is inside of it; one end of
// a pipe would be restored as if nobody had the other, so a move must not cut through any of these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "restart_loader/processes/process_tree.h"

namespace ppmr {

enum class RelationKind {
  kPipe,
  kNamedPipe,
  kSocket,         // the same socket in both
  kUnixStream,     // the two ends of a connection (stream or seqpacket)
  kUnixDatagram,   // sends to the other's socket
  kTcpConnection,  // both ends on this node
  kSharedMemory,   // anonymous, memfd, or a file in /dev/shm
  kSystemVMemory,  // shmget(2)
  kEventfd,
};

struct Relation {
  RelationKind kind = RelationKind::kPipe;
  pid_t inside = 0;
  pid_t outside = 0;
  std::string object;          // "pipe:[71]", "/dev/shm/x", "/run/log.sock"
  bool outside_moves = false;  // with another of the trees
};

// Between each tree and everything that is not in it, one for each pair of processes and kind. A
// relation between two of the trees is told once. Errors: ESRCH when a root has ended, EACCES;
// processes of others that we may not look at count as sharing nothing (root may look at all).
Result<std::vector<Relation>> find_relations(const ProcessTable& table,
                                             const std::vector<ProcessTree>& trees);

// In words, with what to do.
Finding explain(const ProcessTable& table, const Relation& relation, const TreeOptions& options);

}  // namespace ppmr
