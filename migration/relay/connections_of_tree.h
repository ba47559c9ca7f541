// The connections of a tree whose CRIU was killed in the middle of a dump.
#pragma once

#include <string>

#include "base/result.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Whether the tree certainly goes on here. The connections of a tree that may move, or has moved,
// must stay as CRIU left them: else this kernel would end them towards their peers. Pure.
bool goes_on_here(const OwnershipRecord& record, const TreeRecord& tree);

// Notes that CRIU is about to lock the network namespace of a tree, or that it has ended in order
// and has undone that. Errors of the first: of the file system.
Status note_network_lock(const std::string& work_directory);
void forget_network_lock(const std::string& work_directory);

// Whether CRIU dumps the connections of the trees, and keeps packets away from them. Pure.
bool dumps_connections(const OwnershipRecord& record);

// Notes on this node that CRIU is about to make filter rules, which stay after a move. The caller
// calls it before the dump. Errors: of the file system.
Status note_filter_rules(const std::string& state_directory);
// Removes the rules that stayed and that nothing needs (restart_loader/criu/left_locks.h). Does
// nothing without a note. Removes the note when no rule is left and no migration is open.
void remove_left_filter_rules(const RecordStore& store);

// Gives the connections of the tree back to it: removes CRIU's filter rules, and takes its sockets
// out of repair mode. Does nothing if CRIU has done so, or if the tree may still move. Call it
// before the tasks go on; a task that goes on earlier may get EPERM from a socket.
// `work_directory`: of the tree. Errors: EBUSY: CRIU still holds the tree; else the message names a
// connection that stays dead.
Status release_connections(const OwnershipRecord& record, const TreeRecord& tree,
                           const std::string& work_directory);

}  // namespace ppmr
