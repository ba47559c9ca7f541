// Keeps a lazily restored tree from going on with zeros in the place of its memory.
//
// `criu lazy-pages` serves the pages that are not there yet through userfaultfd(2). When the last
// descriptor of a userfaultfd is closed, the kernel forgets that anything is missing, and whoever
// touches a missing page finds zeros (fs/userfaultfd.c, userfaultfd_release()). So a lazy-pages
// that dies, or gives up because the mount it reads from is gone, would leave a tree that computes
// on, wrongly. The guard, a process of its own, holds the same userfaultfds: then whoever touches a
// missing page waits. When lazy-pages has ended well the guard goes; if not, it kills the tree.
//
//   criu restore ... post-restore: take the userfaultfds of lazy-pages | the tree may run
//   lazy-pages   ... serves, fills in .................... ends; its code is left in a file
//   guard                              waits for that ............ 0: goes; else: kills, then goes
//
// Not covered: a guard and a lazy-pages that are killed at the same time; a child that the tree
// forks before its memory is there has a userfaultfd that the guard does not hold, so it is killed
// with the tree, but may have run with zeros for the moment until then.
#pragma once

#include <string>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

// `argv` (of lazy-pages) so that its exit code is left in the work directory, whoever else dies.
std::vector<std::string> with_exit_code_left(const std::vector<std::string>& argv,
                                             const std::string& work_directory);
// Before lazy-pages is started: nothing of another one is to be found.
void forget_pages_server(const std::string& work_directory);
// Leaves word of what runs with_exit_code_left(). Errors: of the file system.
Status note_pages_server(const std::string& work_directory, pid_t pid);

// Whether the guard has killed a tree all of whose tasks still waited for CRIU to let them go.
bool guard_killed_before_it_ran(const std::string& work_directory);

// A line for CRIU's action script at post-restore: when it has succeeded the tree is guarded, or
// was restored without lazy-pages. Otherwise the script ends with an error. Errors: our own binary
// is not to be found.
Result<std::string> guard_pages_line(const std::string& work_directory);

// An action script of nothing but that line, in the work directory; returns its path. Errors: of
// the file system.
Result<std::string> write_guard_script(const std::string& work_directory);

// `ppmr guard-pages`, which that line runs.
struct PagesGuard {
  std::string work_directory;

  // Returns in the process that was called and exits in the guard.
  int run() const;
};

}  // namespace ppmr
