#include "processes/memory/landlock_probe.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Of include/uapi/linux/landlock.h.
constexpr long kCreateRuleset = 444;
constexpr unsigned kVersionOnly = 1;
constexpr uint64_t kNoAddress = ~uint64_t{0};

// The calls after fork() in a program with threads must be async-signal-safe.
[[noreturn]] void become_helper(uid_t uid, gid_t gid, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool is_other = getuid() != uid || getgid() != gid;
  if (is_other &&
      (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, gid, gid, gid) != 0 ||
       syscall(SYS_setresuid, uid, uid, uid) != 0)) {
    _exit(1);
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) _exit(1);
  prctl(PR_SET_DUMPABLE, 1);  // else only a process with capabilities may look at it
  if (write(ready, "", 1) != 1) _exit(1);
  for (;;) pause();
}

bool shares_namespace(pid_t pid, const char* name) {
  const auto theirs = read_process_link(pid, std::string("ns/") + name);
  const auto ours = read_process_link(getpid(), std::string("ns/") + name);
  return theirs && ours && *theirs == *ours;
}

}  // namespace

bool has_landlock() { return syscall(kCreateRuleset, nullptr, 0, kVersionOnly) > 0; }

LandlockProbe::~LandlockProbe() {
  for (const auto& [user, pid] : helpers_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

pid_t LandlockProbe::helper_of(const User& user) {
  if (const auto known = helpers_.find(user); known != helpers_.end()) return known->second;
  pid_t& helper = helpers_[user];
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return 0;
  const UniqueFd ready(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) become_helper(user.first, user.second, ends[1]);
  theirs.reset();
  if (pid < 0) return 0;
  char byte = 0;
  ssize_t n = 0;
  do {
    n = read(ready.get(), &byte, 1);
  } while (n < 0 && errno == EINTR);
  if (n == 1) {
    helper = pid;
  } else {
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  return helper;
}

std::optional<bool> LandlockProbe::is_restricted(pid_t pid) {
  if (!has_landlock()) return false;
  if (!shares_namespace(pid, "pid") || !shares_namespace(pid, "user")) return std::nullopt;
  const auto status = read_process_status(pid);
  if (!status) return std::nullopt;
  const pid_t helper = helper_of({status->real_uid, status->real_gid});
  if (helper <= 0) return std::nullopt;
  auto calls = InjectedCalls::stop(pid);
  if (!calls) return std::nullopt;
  // Whoever may look fails to write there (EFAULT).
  const auto answer =
      calls->call(SYS_get_robust_list, {static_cast<uint64_t>(helper), kNoAddress, kNoAddress});
  if (!answer) return std::nullopt;
  if (*answer == -EPERM) return true;
  if (*answer == -EFAULT) return false;
  return std::nullopt;
}

}  // namespace ppmr
