// A library for CRIU's LD_PRELOAD: stops CRIU once, as it opens the first image of a process. CRIU
// then holds the process, with its parasite code inside.
//
// $STOP_IN_DUMP names a file. CRIU is stopped if the file exists, which is then removed.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int openat64(int directory, const char* path,
                                                               int flags, ...) {
  using Open = int (*)(int, const char*, int, ...);
  static const auto next = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "openat64"));
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const char* wanted = std::getenv("STOP_IN_DUMP");
  if (wanted != nullptr && strncmp(path, "core-", 5) == 0 && unlink(wanted) == 0) raise(SIGSTOP);
  return next(directory, path, flags, mode);
}
