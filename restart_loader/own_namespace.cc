#include "restart_loader/own_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "buffer_pool/unique_fd.h"

namespace ppmr {
namespace {

constexpr int kNamespaceFailed = 125;

int be_process_one(const std::string& mountpoint, const std::function<int()>& body, int report) {
  int code = kNamespaceFailed;
  // Nothing of ours shall be seen outside, and nothing be hidden there.
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0) {
    code = body();
  }
  const auto byte = static_cast<char>(code);
  (void)!write(report, &byte, 1);
  close(report);
  if (code != 0) return code;
  (void)umount2(mountpoint.c_str(), MNT_DETACH);
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  return 0;
}

}  // namespace

Result<int> run_in_own_pid_namespace(const std::string& mountpoint,
                                     const std::function<int()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("make a pipe for", "a namespace");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    return system_failure("make a pid namespace for", "the copy");
  }
  const pid_t child = fork();
  if (child < 0) return system_failure("make process 1 of", "the copy's pid namespace");
  if (child == 0) _exit(be_process_one(mountpoint, body, write_end.get()));
  write_end.reset();
  char byte = static_cast<char>(kNamespaceFailed);
  ssize_t count;
  do {
    count = read(read_end.get(), &byte, 1);
  } while (count < 0 && errno == EINTR);
  return static_cast<unsigned char>(byte);
}

}  // namespace ppmr
