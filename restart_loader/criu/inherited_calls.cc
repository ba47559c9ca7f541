// Makes CRIU set for itself the attributes that only a task itself can set, and that the restored
// tasks inherit from CRIU (processes/carried/inherited_attributes.h). This file is a part of the
// library in CRIU (criu_library.h).
//
// Ignores what this node refuses. apply_carried_state() compares the restored tasks, and warns.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "restart_loader/criu/library_environment.h"
#include "restart_loader/criu/open_calls.h"

namespace {

constexpr int kSetIoFlusher = 57;    // PR_SET_IO_FLUSHER, Linux 5.6
constexpr int kSetMemoryMerge = 67;  // PR_SET_MEMORY_MERGE, Linux 6.4
constexpr unsigned long kNodesMax = 1024;
constexpr unsigned long kBits = 8 * sizeof(unsigned long);

char path[4096];

__attribute__((constructor)) void read_path_of_inherited() {
  const char* const given = getenv(ppmr::kInheritedFile);
  if (given != nullptr && strlen(given) < sizeof(path)) strcpy(path, given);
  unsetenv(ppmr::kInheritedFile);
}

}  // namespace

// The file has these decimal numbers: PERSONALITY IS_IO_FLUSHER MERGES_PAGES MEMORY_FAILURE
// MODE_OF_MEMORY [NODE...]. MEMORY_FAILURE is 0, or 1 more than the argument of PR_MCE_KILL.
void set_inherited() {
  if (path[0] == '\0') return;
  const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  path[0] = '\0';  // a second call does nothing
  if (file < 0) return;
  char text[8192];
  const ssize_t length = read(file, text, sizeof(text) - 1);
  close(file);
  text[length > 0 ? length : 0] = '\0';
  char* at = text;
  const auto next = [&at](unsigned long& value) {
    char* const from = at;
    value = strtoul(from, &at, 10);
    return at != from;
  };
  unsigned long wanted_personality = 0;
  unsigned long is_io_flusher = 0;
  unsigned long merges_pages = 0;
  unsigned long memory_failure = 0;
  unsigned long mode = 0;
  if (!next(wanted_personality) || !next(is_io_flusher) || !next(merges_pages) ||
      !next(memory_failure) || !next(mode)) {
    return;
  }
  unsigned long nodes[kNodesMax / kBits] = {};
  for (unsigned long node = 0; next(node);) {
    if (node < kNodesMax) nodes[node / kBits] |= 1UL << (node % kBits);
  }
  if (wanted_personality != 0) personality(wanted_personality);
  if (is_io_flusher != 0) prctl(kSetIoFlusher, 1, 0, 0, 0);
  if (merges_pages != 0) prctl(kSetMemoryMerge, 1, 0, 0, 0);
  if (memory_failure != 0) prctl(PR_MCE_KILL, PR_MCE_KILL_SET, memory_failure - 1, 0, 0);
  // The kernel reads one bit less than the last argument says.
  if (mode != 0) syscall(SYS_set_mempolicy, mode, nodes, kNodesMax + 1);
}
