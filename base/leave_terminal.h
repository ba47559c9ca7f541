// For a process that goes on when the command that started it has ended.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "base/unique_fd.h"

namespace ppmr {

// Begins a POSIX session, leaves the working directory, and reads and writes /dev/null from now on.
inline void leave_terminal() {
  ::setsid();
  if (::chdir("/") != 0) ::perror("chdir /");
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
}

}  // namespace ppmr
