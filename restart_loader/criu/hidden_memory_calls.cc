// Hides the pages of hidden memory from CRIU (hidden_memory.h). This part of the library in CRIU
// (criu_library.h) replaces two functions of libc with which CRIU reads lists of pages.
//
//   openat64("pagemap")   of a process that CRIU dumps: finds out what to hide in it
//   ioctl(PAGEMAP_SCAN)   CRIU 4
//   pread64(pagemap)      CRIU 3, and every CRIU before Linux 6.7
//
// If anything does not look as expected, the library hides nothing. CRIU has one thread.
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "restart_loader/criu/hidden_memory.h"
#include "restart_loader/criu/library_environment.h"
#include "restart_loader/criu/open_calls.h"

namespace {

using ppmr::PageScan;

bool hides_memory = false;

// The page list that CRIU opened last. CRIU reads one list after the other.
struct OpenPageList {
  int file = -1;
  ino_t inode = 0;  // another file may have the number of the descriptor by now
  int maps = -1;    // still to be read into `memory`; -1: already read, or none
  ppmr::HiddenMemory memory;
};
OpenPageList opened;

__attribute__((constructor)) void read_environment() {
  const char* const hides = getenv(ppmr::kHidesMemory);
  hides_memory = hides != nullptr && strcmp(hides, "1") == 0;
  // The programs that CRIU starts, such as tar, need no such library.
  unsetenv(ppmr::kPreload);
  unsetenv(ppmr::kHidesMemory);
}

int open_beside(int directory, const char* name) {
  return static_cast<int>(syscall(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC));
}

ino_t inode_of(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 ? facts.st_ino : 0;
}

// Returns what to hide in the page list; null: nothing.
const ppmr::HiddenMemory* hidden_in(int file) {
  if (file != opened.file || file < 0 || inode_of(file) != opened.inode) return nullptr;
  if (opened.maps >= 0) {
    opened.memory.read(opened.maps);
    close(opened.maps);
    opened.maps = -1;
  }
  return opened.memory.count() > 0 ? &opened.memory : nullptr;
}

// CRIU also scans for guard pages only, which stay visible, and for nothing, to test whether the
// kernel has this scan.
bool asks_for_contents(const PageScan& scan) {
  return scan.size == sizeof(PageScan) && scan.flags == 0 && scan.pages_max == 0 &&
         (scan.category_anyof_mask & ppmr::kPageIsPresent) != 0 && scan.start < scan.end;
}

}  // namespace

void note_page_list(int directory, int file) {
  if (!hides_memory) return;
  if (opened.maps >= 0) close(opened.maps);
  opened.file = opened.maps = -1;
  opened.memory.forget();
  const int status = open_beside(directory, "status");
  if (status < 0) return;
  static char text[8192];
  const ssize_t length = read(status, text, sizeof(text));
  close(status);
  if (length <= 0 || !ppmr::may_hide(text, static_cast<size_t>(length), getpid())) return;
  opened.maps = open_beside(directory, "maps");
  opened.file = opened.maps < 0 ? -1 : file;
  opened.inode = inode_of(file);
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int ioctl(int file, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (hides_memory && request == ppmr::kPageScan) {
    PageScan& scan = *static_cast<PageScan*>(argument);
    const auto* const hidden = asks_for_contents(scan) ? hidden_in(file) : nullptr;
    if (hidden != nullptr) return hidden->scan(file, scan);
  }
  return static_cast<int>(syscall(SYS_ioctl, file, request, argument));
}

EXPORTED ssize_t pread64(int file, void* buffer, size_t bytes, off64_t at) {
  const auto* const hidden = hides_memory ? hidden_in(file) : nullptr;
  if (hidden != nullptr) return hidden->pread(file, buffer, bytes, at);
  return syscall(SYS_pread64, file, buffer, bytes, at);
}
