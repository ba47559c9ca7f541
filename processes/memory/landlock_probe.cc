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

constexpr long kCreateRuleset = 444;  // the system call, of asm-generic/unistd.h
constexpr unsigned kVersionOnly = 1;  // LANDLOCK_CREATE_RULESET_VERSION of linux/landlock.h
constexpr uint64_t kNoAddress = ~uint64_t{0};  // where the kernel cannot write

// The helper is another program, so that users who may read its memory find no copy of this
// process. It has no capabilities, ends with its parent, and does not hold this process's terminal
// open. `of`: a process whose pid namespace the helper enters; 0: it stays in the namespace of this
// process.
std::vector<std::string> helper_command(uid_t uid, gid_t gid, pid_t of) {
  std::vector<std::string> words;
  if (of != 0) {
    words = {"setpriv", "--pdeathsig=KILL", "nsenter",
             "--pid=/proc/" + std::to_string(of) + "/ns/pid"};
  }
  words.insert(words.end(),
               {"setpriv", "--pdeathsig=KILL", "--inh-caps=-all", "--ambient-caps=-all"});
  if (uid == 0) words.push_back("--bounding-set=-all");
  if (uid != getuid() || gid != getgid()) {
    words.insert(words.end(), {"--reuid=" + std::to_string(uid), "--regid=" + std::to_string(gid),
                               "--clear-groups"});
  }
  words.insert(words.end(), {"sh", "-c", "echo && exec sleep infinity >/dev/null"});
  return words;
}

void end_child(pid_t pid) {
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Waits for the byte that the helper writes when it runs.
bool await_ready(const UniqueFd& ready) {
  char byte = 0;
  ssize_t n = 0;
  do {
    n = read(ready.get(), &byte, 1);
  } while (n < 0 && errno == EINTR);
  return n == 1;
}

pid_t only_child_of(pid_t pid) {
  const auto children =
      read_process_file(pid, "task/" + std::to_string(pid) + "/children").value_or("");
  return static_cast<pid_t>(strtol(children.c_str(), nullptr, 10));
}

bool shares_namespace(pid_t pid, const char* name) {
  const auto theirs = read_process_link(pid, std::string("ns/") + name);
  const auto ours = read_process_link(getpid(), std::string("ns/") + name);
  return theirs && ours && *theirs == *ours;
}

}  // namespace

bool has_landlock() { return syscall(kCreateRuleset, nullptr, 0, kVersionOnly) > 0; }

LandlockProbe::~LandlockProbe() {
  for (const auto& [kind, helper] : helpers_) {
    if (helper.pid > 0) kill(helper.pid, SIGKILL);
    if (helper.started > 0) end_child(helper.started);
  }
}

const LandlockProbe::Helper& LandlockProbe::helper_for(pid_t thread, uid_t uid, gid_t gid) {
  const bool is_here = shares_namespace(thread, "pid");
  const std::string pid_namespace =
      is_here ? std::string() : read_process_link(thread, "ns/pid").value_or("");
  const auto [place, is_new] = helpers_.try_emplace(Kind{uid, gid, pid_namespace});
  Helper& helper = place->second;
  if (!is_new) return helper;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return helper;
  const UniqueFd ready(ends[0]);
  UniqueFd theirs(ends[1]);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto started = spawn({.argv = helper_command(uid, gid, is_here ? 0 : thread),
                              .files = {{null.get(), STDIN_FILENO},
                                        {theirs.get(), STDOUT_FILENO},
                                        {null.get(), STDERR_FILENO}}});
  theirs.reset();
  if (!started) return helper;
  helper.started = *started;
  if (!await_ready(ready)) return helper;
  helper.pid = is_here ? *started : only_child_of(*started);
  const auto status = read_process_status(helper.pid);
  if (!status) return helper;
  helper.pid_in_namespace =
      is_here || status->namespace_pids.empty() ? helper.pid : status->namespace_pids.back();
  return helper;
}

std::optional<bool> LandlockProbe::is_restricted(pid_t thread) {
  if (!has_landlock()) return false;
  if (!shares_namespace(thread, "user")) return std::nullopt;
  const auto status = read_process_status(thread);
  if (!status) return std::nullopt;
  const pid_t helper = helper_for(thread, status->real_uid, status->real_gid).pid_in_namespace;
  if (helper <= 0) return std::nullopt;
  // A process that may inspect the helper gets EFAULT, because the kernel cannot write the result
  // to kNoAddress.
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
