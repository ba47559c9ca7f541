#include "processes/memory/landlock_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/spawn.h"
#include "base/unique_fd.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Of include/uapi/linux/landlock.h.
constexpr long kCreateRuleset = 444;
constexpr unsigned kVersionOnly = 1;
constexpr uint64_t kNoAddress = ~uint64_t{0};

// The helper is another program, so that users who may read its memory find no copy of this
// process. It has no capabilities, ends with this process, and has none of its terminal.
std::vector<std::string> helper_command(uid_t uid, gid_t gid) {
  std::vector<std::string> words = {"setpriv", "--pdeathsig=KILL", "--inh-caps=-all",
                                    "--ambient-caps=-all"};
  if (uid == 0) words.push_back("--bounding-set=-all");
  if (uid != getuid() || gid != getgid()) {
    words.insert(words.end(), {"--reuid=" + std::to_string(uid), "--regid=" + std::to_string(gid),
                               "--clear-groups"});
  }
  words.insert(words.end(), {"sh", "-c", "echo && exec sleep infinity >/dev/null"});
  return words;
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
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto started = spawn({.argv = helper_command(user.first, user.second),
                              .files = {{null.get(), STDIN_FILENO},
                                        {theirs.get(), STDOUT_FILENO},
                                        {null.get(), STDERR_FILENO}}});
  theirs.reset();
  if (!started) return 0;
  const pid_t pid = *started;
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

std::optional<bool> LandlockProbe::is_restricted(pid_t thread) {
  if (!has_landlock()) return false;
  if (!shares_namespace(thread, "pid") || !shares_namespace(thread, "user")) return std::nullopt;
  const auto status = read_process_status(thread);
  if (!status) return std::nullopt;
  const pid_t helper = helper_of({status->real_uid, status->real_gid});
  if (helper <= 0) return std::nullopt;
  // A process that may look at the helper gets EFAULT, because the answer cannot be written there.
  long answer = 0;
  const Status asked = with_injected_calls(thread, [&](InjectedCalls& calls) -> Status {
    const auto said =
        calls.call(SYS_get_robust_list, {static_cast<uint64_t>(helper), kNoAddress, kNoAddress});
    answer = said.value_or(0);
    return said ? Status{} : failure(said.error());
  });
  if (!asked || (answer != -EPERM && answer != -EFAULT)) return std::nullopt;
  return answer == -EPERM;
}

}  // namespace ppmr
