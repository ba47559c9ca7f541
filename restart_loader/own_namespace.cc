#include "restart_loader/own_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "buffer_pool/unique_fd.h"

namespace ppmr {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("make a pipe for", "a pid namespace");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// False when the other end is gone.
bool receive(const UniqueFd& fd, int& value) {
  ssize_t count;
  do {
    count = read(fd.get(), &value, sizeof value);
  } while (count < 0 && errno == EINTR);
  return count == sizeof value;
}

void send(const UniqueFd& fd, int value) { (void)!write(fd.get(), &value, sizeof value); }

// What the child reports instead of what `body` returned.
int failed(int errno_value) { return -errno_value; }

int be_process_one(const std::string& mountpoint, const std::function<int()>& body,
                   UniqueFd report) {
  // Nothing of ours shall be seen outside, and nothing be hidden there.
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    send(report, failed(errno));
    return 1;
  }
  const int code = body();
  send(report, code);
  report.reset();
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
  auto start = make_pipe();
  if (!start) return failure(start.error());
  auto report = make_pipe();
  if (!report) return failure(report.error());
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    return system_failure("make a pid namespace for", "the copy");
  }
  const pid_t child = fork();
  if (child < 0) return system_failure("make process 1 of", "the copy's pid namespace");
  if (child == 0) {
    start->write_end.reset();
    int word = 0;
    if (!receive(start->read_end, word)) _exit(1);
    _exit(be_process_one(mountpoint, body, std::move(report->write_end)));
  }
  report->write_end.reset();
  if (Status status = started(child); !status) return failure(status.error());
  send(start->write_end, 0);
  int code = 0;
  if (!receive(report->read_end, code)) {
    return failure(ECHILD, "process 1 of the copy's pid namespace was killed");
  }
  if (code < 0) return system_failure("mount", "/proc of the copy's pid namespace", -code);
  return code;
}

}  // namespace ppmr
