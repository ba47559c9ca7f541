#include "verbs_library/shadow/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace ppmr::verbs {

void log(const char* format, ...) {
  const char* const place = std::getenv("PPMR_VERBS_LOG");
  if (!place || !*place) return;
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  char line[512];
  int length = std::snprintf(line, sizeof(line), "ppmr-verbs[%d] %lld.%03ld ", getpid(),
                             static_cast<long long>(now.tv_sec), now.tv_nsec / 1'000'000);
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(line + length, sizeof(line) - static_cast<size_t>(length) - 1, format,
                           arguments);
  va_end(arguments);
  length = std::min(length, static_cast<int>(sizeof(line)) - 2);
  line[length++] = '\n';
  // Opens the file for each line: a file that stays open would have to exist at the target of a
  // move.
  const bool to_stderr = std::strcmp(place, "1") == 0;
  const int fd =
      to_stderr ? STDERR_FILENO : open(place, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  (void)!write(fd, line, static_cast<size_t>(length));
  if (!to_stderr) close(fd);
}

}  // namespace ppmr::verbs
