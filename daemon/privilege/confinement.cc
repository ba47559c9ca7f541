#include "daemon/privilege/confinement.h"

#include <cap-ng.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "daemon/privilege/syscall_filter.h"

namespace ppmr {
namespace {

// PR_SET_MDWE and its flag, since Linux 6.3. The headers of Debian 12 lack these constants.
constexpr int kSetMdwe = 65;
constexpr unsigned long kRefuseExecGain = 1;

// Fails if the process has several threads, because most of the later calls apply to one thread
// only.
Status check_single_thread() {
  struct stat tasks {};
  if (::stat("/proc/self/task", &tasks) != 0)
    return system_failure("read the attributes of", "/proc/self/task");
  if (tasks.st_nlink == 3) return {};  // ".", ".." in the parent, and a directory per thread
  return failure(EINVAL, "drop privileges: the process has other threads already");
}

// When a process changes its user, the kernel clears the signal that the process gets at its
// parent's death (prctl(2)). This class sets the signal again.
class ParentDeathSignal {
 public:
  ParentDeathSignal() : parent_(::getppid()) { ::prctl(PR_GET_PDEATHSIG, &signal_); }
  void restore() const {
    if (signal_ == 0) return;
    ::prctl(PR_SET_PDEATHSIG, signal_);
    if (::getppid() != parent_) ::raise(signal_);  // the parent died while no signal was set
  }

 private:
  const pid_t parent_;
  int signal_ = 0;
};

Status drop_to(const DaemonUser& user, bool locks_memory) {
  capng_clear(CAPNG_SELECT_BOTH);
  if (::geteuid() != 0) {
    if (capng_apply(CAPNG_SELECT_CAPS) == 0) return {};
    return system_failure("drop", "capabilities", EPERM);
  }
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  if (locks_memory && ::setrlimit(RLIMIT_MEMLOCK, &unlimited) != 0) {
    capng_update(CAPNG_ADD, static_cast<capng_type_t>(CAPNG_EFFECTIVE | CAPNG_PERMITTED),
                 CAP_IPC_LOCK);
  }
  // The supplementary groups of an account may give access to RDMA devices.
  const int groups = user.name.empty() ? CAPNG_DROP_SUPP_GRP : CAPNG_INIT_SUPP_GRP;
  const int changed = capng_change_id(static_cast<int>(user.uid), static_cast<int>(user.gid),
                                      static_cast<capng_flags_t>(groups | CAPNG_CLEAR_BOUNDING));
  if (changed == 0) return {};
  return failure(EPERM, "run as user " + std::to_string(user.uid) + ": libcap-ng reports " +
                            std::to_string(changed) +
                            " (in a container: does the user namespace map this id? choose another "
                            "user with --user)");
}

std::string present_capabilities() {
  capng_get_caps_process();
  if (capng_have_capabilities(CAPNG_SELECT_CAPS) == CAPNG_NONE) return "none";
  const std::unique_ptr<char, decltype(&std::free)> names(
      capng_print_caps_text(CAPNG_PRINT_BUFFER, CAPNG_PERMITTED), &std::free);
  return names ? names.get() : "unknown";
}

}  // namespace

Result<Confinement> confine(const DaemonUser& user, const LandlockRules& rules, bool locks_memory) {
  if (Status single = check_single_thread(); !single) return failure(single.error());
  ::tzset();  // reads /etc/localtime for the log while the file can still be opened
  const ParentDeathSignal parent_death;
  if (Status dropped = drop_to(user, locks_memory); !dropped) return failure(dropped.error());
  parent_death.restore();
  ::prctl(PR_SET_DUMPABLE, 0);  // a change of the user sets this flag to fs.suid_dumpable
  ::prctl(kSetMdwe, kRefuseExecGain, 0, 0, 0);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return system_failure("give up", "the right to gain privileges (PR_SET_NO_NEW_PRIVS)");
  }
  Confinement confinement;
  confinement.user = user;
  confinement.capabilities = present_capabilities();
  if (auto landlock = restrict_with_landlock(rules)) {
    confinement.landlock = *landlock;
  } else if (landlock.error().errno_value == ENOSYS || landlock.error().errno_value == EOPNOTSUPP) {
    confinement.landlock_why = "this kernel does not offer it";
  } else {
    return failure(landlock.error());
  }
  if (Status filtered = filter_system_calls(); !filtered) return failure(filtered.error());
  confinement.no_new_privileges = ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
  confinement.system_calls_filtered = ::prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER;
  return confinement;
}

nlohmann::json describe(const Confinement& confinement) {
  nlohmann::json description = {{"user", confinement.user.name},
                                {"uid", confinement.user.uid},
                                {"capabilities", confinement.capabilities},
                                {"no_new_privs", confinement.no_new_privileges},
                                {"seccomp", confinement.system_calls_filtered},
                                {"landlock", confinement.landlock}};
  if (confinement.landlock == 0) description["landlock_why"] = confinement.landlock_why;
  return description;
}

}  // namespace ppmr
