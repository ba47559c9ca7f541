// Detaches a process that continues after the command that started it has ended.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "base/unique_fd.h"

namespace ppmr {

// Begins a POSIX session, makes / the working directory, and redirects stdin, stdout and stderr to
// /dev/null.
inline void leave_terminal() {
  ::setsid();
  if (::chdir("/") != 0) ::perror("chdir /");
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
}

}  // namespace ppmr
