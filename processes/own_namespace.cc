#include "processes/own_namespace.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

// Returns false when the other end of the socket pair is closed.
bool receive(const UniqueFd& fd, int& value) {
  ssize_t count;
  do {
    count = read(fd.get(), &value, sizeof value);
  } while (count < 0 && errno == EINTR);
  return count == sizeof value;
}

// Has no effect, and causes no SIGPIPE, when the other end of the socket pair is closed.
void send(const UniqueFd& fd, int value) {
  (void)::send(fd.get(), &value, sizeof value, MSG_NOSIGNAL);
}

// Encodes the errno of a failed mount as a negative number, which the child sends instead of the
// result of `body`.
int encode_errno(int errno_value) { return -errno_value; }

int run_process_one(const std::string& mountpoint, const std::function<int()>& body,
                    UniqueFd caller) {
  // Slave propagation: mounts made in the new mount namespace stay in it, and unmounts outside
  // still take effect in it.
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    send(caller, encode_errno(errno));
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
    return system_failure("create a socket pair for", "the copy's pid namespace");
  }
  UniqueFd to_child(ends[0]);
  UniqueFd to_caller(ends[1]);
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    return system_failure("create a pid namespace for", "the copy");
  }
  const pid_t child = fork();
  if (child < 0) return system_failure("start process 1 of", "the copy's pid namespace");
  if (child == 0) {
    to_child.reset();
    int go_ahead = 0;
    if (!receive(to_caller, go_ahead)) _exit(1);
    _exit(run_process_one(mountpoint, body, std::move(to_caller)));
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
