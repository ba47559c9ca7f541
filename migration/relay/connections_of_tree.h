// Releases the connections of a tree whose CRIU was killed in the middle of a dump.
#pragma once

#include <string>

#include "base/result.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Returns whether the tree certainly goes on here. If a tree may move, or has moved, its
// connections must stay as CRIU left them: otherwise this kernel would reset them at their peers.
// Pure.
bool goes_on_here(const OwnershipRecord& record, const TreeRecord& tree);

// note_network_lock() notes that CRIU is about to lock the network namespace of a tree.
// forget_network_lock() removes the note, because CRIU has ended in order and unlocked the
// namespace. Errors: those of the file system.
Status note_network_lock(const std::string& work_directory);
void forget_network_lock(const std::string& work_directory);

// Returns whether CRIU dumps the connections of the trees, and keeps packets away from them. Pure.
bool dumps_connections(const OwnershipRecord& record);

// Notes on this node that CRIU is about to make filter rules, which stay after a move. Call it
// before the dump. Errors: those of the file system.
Status note_filter_rules(const std::string& state_directory);
// Removes the filter rules that have stayed and that no migration needs
// (restart_loader/criu/left_locks.h). Does nothing without a note. Removes the note when no rule is
// left and no migration is open.
void remove_left_filter_rules(const RecordStore& store);

// Makes the connections of the tree usable again: removes CRIU's filter rules, and takes the tree's
// sockets out of repair mode. Does nothing if CRIU has done this itself, or if the tree may still
// move. Call it before the tasks go on; a task that goes on earlier may get EPERM from a socket.
// `work_directory`: the tree's. Errors: EBUSY: CRIU still holds the tree; all other errors name a
// connection that stays unusable.
Status release_connections(const OwnershipRecord& record, const TreeRecord& tree,
                           const std::string& work_directory);

}  // namespace ppmr
