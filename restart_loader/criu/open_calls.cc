// Replaces the functions with which CRIU opens images, files of /proc and others. This file is a
// part of the library in CRIU (criu_library.h).
#include "restart_loader/criu/open_calls.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int openat64(int directory, const char* path,
                                                               int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const auto file =
      static_cast<int>(syscall(SYS_openat, directory, path, flags | O_LARGEFILE, mode));
  if (file >= 0 && strcmp(path, "pagemap") == 0) note_page_list(directory, file);
  return after_open(directory, path, flags, file);
}

extern "C" __attribute__((visibility("default"))) int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const auto file =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode));
  note_created(path, flags, file);
  return file;
}
