// Keeps a lazily restored tree from going on with zeros in the place of its memory.
//
// `criu lazy-pages` serves the pages that are not there yet through userfaultfd(2). When the last
// descriptor of a userfaultfd is closed, the kernel forgets that anything is missing, and whoever
// touches a missing page finds zeros (fs/userfaultfd.c, userfaultfd_release()). So a lazy-pages
// that dies, or gives up because the mount it reads from is gone, would leave a tree that computes
// on, wrongly. The guard, a process of its own, is its tracer: the kernel stops a tracee that
// exits, for whatever reason, before it closes its descriptors (PTRACE_O_TRACEEXIT). Unless that is
// a good end the guard kills the tree first, which still waits for its pages then.
//
//   criu restore ... post-restore: the guard watches lazy-pages | the tree may run
//   lazy-pages   ... serves, fills in ............... exits | goes
//   guard                         waits for that ... 0: lets it go; else: kills the tree, lets it
//   go
//
// Not covered: a guard that is killed before lazy-pages.
//
// Rejected: duplicates of the userfaultfds in the guard. lazy-pages closes that of a task which is
// complete and frees what it knows of it; with a duplicate its epoll set goes on telling of it.
#pragma once

#include <sys/types.h>

#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// Before lazy-pages is started: nothing of another one is to be found.
void forget_pages_server(const std::string& work_directory);
// Leaves word of lazy-pages for the guard. Errors: of the file system.
Status note_pages_server(const std::string& work_directory, pid_t pid);

// Whether there is, or was, a lazy-pages.
bool has_pages_server(const std::string& work_directory);
// Returns when lazy-pages, where there is one, has ended, whoever has started it.
void await_pages_server(const std::string& work_directory);

// Whether the guard has killed the tree.
bool guard_killed(const std::string& work_directory);
// The same for a tree all of whose tasks still waited for CRIU to let them go.
bool guard_killed_before_it_ran(const std::string& work_directory);

// Whether lazy-pages, where there is one, has ended, was told to, or is stopped and serves nobody:
// asked last before a tree is let go, because the guard may not have had its turn yet.
bool pages_server_is_lost(const std::string& work_directory);

// An action script for CRIU, in the work directory, that does nothing but run the guard; returns
// its path. Errors: of the file system; our own binary is not to be found.
Result<std::string> write_guard_script(const std::string& work_directory);

// `ppmr guard-pages`, which CRIU runs at post-restore.
struct PagesGuard {
  std::string work_directory;
  pid_t restored_root = 0;  // 0: CRIU says it in the environment, as to all action scripts

  // 0 when the tree is guarded, or was restored without lazy-pages. Closes all that the process has
  // open but its standard streams. Returns in the process that was called and exits in the guard.
  int run() const;
};

}  // namespace ppmr
