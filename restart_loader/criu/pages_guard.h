// Prevents a lazily restored tree from reading zeros instead of its memory.
//
// The pager (restart_loader/pager) serves missing pages through userfaultfd(2). When the last
// descriptor of a userfaultfd is closed, the kernel forgets which pages are missing, and the tree
// reads zeros there (fs/userfaultfd.c, userfaultfd_release()). So if the pager died, or gave up
// because its mount is gone, the tree would compute on with wrong data. The guard, a separate
// process, traces the pager: the kernel stops an exiting tracee before it closes its descriptors
// (PTRACE_O_TRACEEXIT). If the exit code is not 0, the guard then kills the tree, which still waits
// for its pages.
//
// clang-format off
//   criu restore ... post-restore: the guard traces the pager | the tree may run
//   the pager    ... serves, fills in ..................... exit | ends
//   guard                      waits ....................... code 0: detach
//                                                            else: kill the tree, detach
// clang-format on
//
// Not covered: the guard is killed, and the pager dies later. The guard is a program of its own, so
// that `pkill -f migration-relay` does not kill it.
//
// Considered and not used: duplicates of the userfaultfds in the guard, for a new pager. It would
// not know which pages the tree has discarded or moved meanwhile.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace ppmr {

// Removes the notes about an earlier pager, before a new one starts.
void forget_pages_server(const std::string& work_directory);
// Records the pid of the pager for the guard. Errors: of the file system.
Status note_pages_server(const std::string& work_directory, pid_t pid);

// Whether a pager was recorded.
bool has_pages_server(const std::string& work_directory);
// Blocks until the pager, if any, has ended. It need not be a child of the caller.
void await_pages_server(const std::string& work_directory);
// Kills the pager, if any, and blocks until it has ended. Its tree must have ended.
void end_pages_server(const std::string& work_directory);

// Whether the guard has killed the tree.
bool guard_killed(const std::string& work_directory);
// Whether the guard killed the tree while all of its tasks still waited for CRIU, so that no task
// had run its own code.
bool guard_killed_before_it_ran(const std::string& work_directory);

// Whether the pager, if any, has ended, is about to end, or is stopped. The last check before a
// tree is released, because the guard may not have reacted yet.
bool pages_server_is_lost(const std::string& work_directory);

// Writes an action script to the work directory, with which CRIU runs the guard. Returns its path.
// Errors: of the file system and of own_path().
Result<std::string> write_guard_script(const std::string& work_directory);

// `ppmr guard-pages`, which CRIU or the relay runs at post-restore.
struct PagesGuard {
  std::string work_directory;
  pid_t restored_root = 0;

  // Starts the guard in a child process, which exits without returning from run(). Returns 0 if the
  // tree is guarded, or was restored without a pager. Closes all descriptors of the calling
  // process except its standard streams.
  int run() const;
};

}  // namespace ppmr
