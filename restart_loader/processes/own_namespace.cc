#include "restart_loader/processes/own_namespace.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "buffer_pool/unique_fd.h"

namespace ppmr {
namespace {

// False when the other end is gone.
bool receive(const UniqueFd& fd, int& value) {
  ssize_t count;
  do {
    count = read(fd.get(), &value, sizeof value);
  } while (count < 0 && errno == EINTR);
  return count == sizeof value;
}

// To an end that is gone: nothing, also no SIGPIPE.
void send(const UniqueFd& fd, int value) {
  (void)::send(fd.get(), &value, sizeof value, MSG_NOSIGNAL);
}

// What the child reports instead of what `body` returned.
int failed(int errno_value) { return -errno_value; }

int be_process_one(const std::string& mountpoint, const std::function<int()>& body,
                   UniqueFd caller) {
  // Nothing of ours shall be seen outside, and nothing be hidden there.
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    send(caller, failed(errno));
    return 1;
  }
  const int code = body();
  send(caller, code);
  caller.reset();
  if (code != 0) return code;
  (void)umount2(mountpoint.c_str(), MNT_DETACH);
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  return 0;
}

}  // namespace

Result<int> run_in_own_pid_namespace(const std::string& mountpoint,
                                     const std::function<Status(pid_t)>& started,
                                     const std::function<int()>& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("make a socket pair for", "the copy's pid namespace");
  }
  UniqueFd to_child(ends[0]);
  UniqueFd to_caller(ends[1]);
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    return system_failure("make a pid namespace for", "the copy");
  }
  const pid_t child = fork();
  if (child < 0) return system_failure("make process 1 of", "the copy's pid namespace");
  if (child == 0) {
    to_child.reset();
    int word = 0;
    if (!receive(to_caller, word)) _exit(1);
    _exit(be_process_one(mountpoint, body, std::move(to_caller)));
  }
  to_caller.reset();
  if (Status status = started(child); !status) return failure(status.error());
  send(to_child, 0);
  int code = 0;
  if (!receive(to_child, code)) {
    return failure(ECHILD, "process 1 of the copy's pid namespace was killed");
  }
  if (code < 0) return system_failure("mount", "/proc of the copy's pid namespace", -code);
  return code;
}

}  // namespace ppmr
