// Prevents a lazily restored tree from reading zeros instead of its memory.
//
// The pager (restart_loader/pager) serves missing pages through userfaultfd(2). When the last
// descriptor of a userfaultfd is closed, the kernel forgets which pages are missing, and the tree
// reads zeros there (fs/userfaultfd.c, userfaultfd_release()). If the pager died, or gave up
// because its mount is gone, the tree would continue with wrong data. The guard, a separate
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
// The guard gives no protection if it is killed and the pager dies later. Then the program that
// waits for the pager kills the tree (end_lost_tree()) and reports that this was late. The guard is
// a program of its own, so that `pkill -f migration-relay` does not kill it.
//
// Rejected: the guard keeps duplicates of the userfaultfds for a new pager. The new pager could not
// find out which pages the tree has discarded or moved in the meantime.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

// Removes the notes about an earlier pager, before a new one starts.
void forget_pages_server(const std::string& work_directory);
// Records the pid of the pager for the guard. Errors: of the file system.
Status note_pages_server(const std::string& work_directory, pid_t pid);

// Returns whether a pager was recorded.
bool has_pages_server(const std::string& work_directory);
// Blocks until the pager, if any, has ended. The pager need not be a child of the caller.
void await_pages_server(const std::string& work_directory);
// Kills the pager, if any, and blocks until it has ended. The tree of the pager must have ended
// before.
void end_pages_server(const std::string& work_directory);

// Returns whether the guard has killed the tree.
bool guard_killed(const std::string& work_directory);
// Returns whether the guard killed the tree while all of its tasks still waited for CRIU. In that
// case no task has run its own code.
bool guard_killed_before_it_ran(const std::string& work_directory);

// What became of a tree whose pager has ended before all pages were in place.
enum class LostTree {
  kKilled,      // the guard killed it, so it has read no zeros
  kKilledLate,  // the guard had ended, too: the tree ran without its pages until it was killed
  kEnded,       // the guard had ended, too: the tree ran without its pages until it ended
};
// Kills the tasks and their descendants, unless the guard has, and blocks until they have ended.
// Call it when the pager has ended.
LostTree end_lost_tree(const std::string& work_directory,
                       const std::vector<ProcessIdentity>& tasks);
// Returns what has become of the tree, as a phrase that follows the name of a process.
std::string describe(LostTree lost);

// Returns whether the pager, if any, has ended, is about to end, or is stopped. This is the last
// check before a tree is released, because the guard may not have reacted yet.
bool pages_server_is_lost(const std::string& work_directory);

// Writes to the work directory an action script with which CRIU runs the guard. Returns the path of
// the script. Errors: of the file system and of own_path().
Result<std::string> write_guard_script(const std::string& work_directory);

// `ppmr guard-pages`. CRIU or the relay runs it at post-restore.
struct PagesGuard {
  std::string work_directory;
  pid_t restored_root = 0;

  // Starts the guard in a child process, which exits without returning from run(). Returns 0 if the
  // tree is guarded, or was restored without a pager. Closes all descriptors of the calling
  // process except its standard streams.
  int run() const;
};

}  // namespace ppmr
