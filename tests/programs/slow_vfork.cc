// A program that spends nearly all of its time between vfork(2) and execve(2): its child waits for
// a tenth of a second before it executes a program, and the parent waits in the kernel meanwhile.
//
// Usage: slow_vfork PROGRAM FILE     appends one line to FILE after each child has ended

#include <sys/wait.h>

#include "posix.h"

int main(int argc, char** argv) {
  using namespace ppmr_programs;
  if (argc != 3) {
    fprintf(stderr, "usage: slow_vfork PROGRAM FILE\n");
    return 2;
  }
  for (int count = 1;; ++count) {
    const pid_t child = vfork();
    if (child == 0) {
      usleep(100'000);
      execl(argv[1], argv[1], static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) die("vfork");
    const int file = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || dprintf(file, "%d\n", count) < 0) die("append a line");
    close(file);
  }
}
