// Finds the objects that a tree shares with other processes. CRIU dumps one tree: if a pipe leads
// out of the tree, CRIU would restore only one end of it. So a migration must not separate
// processes that share any of these objects.
#pragma once

#include <string>
#include <vector>

#include "processes/process_tree.h"

namespace ppmr {

// The socket to which systemd connects the output of services (StandardOutput=journal).
inline constexpr const char* kJournalSocket = "/run/systemd/journal/stdout";

enum class RelationKind {
  kPipe,
  kNamedPipe,
  kSocket,         // a socket that several processes have open
  kUnixStream,     // a connection (stream or seqpacket); the tree has one or both ends
  kUnixDatagram,   // a socket to which other processes send
  kTcpConnection,  // both ends on this node
  kSharedMemory,   // shared memory: anonymous, memfd, or a file in /dev/shm
  kSystemVMemory,  // shmget(2)
  kEventfd,
};

// One object that a tree shares, or several objects that the same processes share. Every list is
// sorted.
struct Relation {
  RelationKind kind = RelationKind::kPipe;
  std::string object;                 // name of the object, such as "/run/log.sock"; may be empty
  std::vector<pid_t> inside;          // the processes of the tree that have the object
  std::vector<pid_t> staying;         // processes that have it and do not move
  std::vector<pid_t> in_other_trees;  // processes that have it and move separately
};

// Finds the relations between each tree and all processes outside of it. An object that several
// trees share is reported only for the first of these trees. Skips processes that the caller may
// not read (root may read all). Errors: ESRCH when a root has ended, EACCES.
Result<std::vector<Relation>> find_relations(const ProcessTable& table,
                                             const std::vector<ProcessTree>& trees);

// Returns the relation as a sentence with its remedy.
Finding explain(const ProcessTable& table, const Relation& relation, const TreeOptions& options);

}  // namespace ppmr
