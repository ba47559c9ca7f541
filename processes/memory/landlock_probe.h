// Finds processes that Landlock restricts. CRIU 4.2 restores them without their restrictions, and
// without a message.
//
// The kernel shows Landlock domains nowhere. But it forbids a process in a domain to inspect a
// process outside of the domain. So the probe starts a helper that has the user of the process and
// no capabilities. Without a domain, every process of that user may inspect the helper. Then the
// probe injects a system call that inspects the helper and changes nothing: get_robust_list(2). If
// the process has its own pid namespace, as in a container, the helper is in that namespace, too.
//
// Rejected: kcmp(2), which is missing in some kernels; calls that a domain's rules deny, because
// domains differ, and because the call could succeed.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "processes/memory/injected_calls.h"

namespace ppmr {

// Threads: one.
class LandlockProbe {
 public:
  LandlockProbe() = default;
  LandlockProbe(const LandlockProbe&) = delete;
  LandlockProbe& operator=(const LandlockProbe&) = delete;
  ~LandlockProbe();  // ends the helpers

  // Returns whether the thread is in a domain, see with_injected_calls(). Stops it for about 100
  // us. A confining profile of another security module has the same effect. Returns nullopt if a
  // call cannot be injected: the thread is in another user namespace, or ppmr cannot trace it.
  std::optional<bool> is_restricted(pid_t thread);

 private:
  struct Helper {
    pid_t started = 0;           // the helper, or the nsenter(1) that has started it
    pid_t pid = 0;               // the helper itself; 0: it could not be started
    pid_t pid_in_namespace = 0;  // as the probed process sees it
  };
  using Kind = std::tuple<uid_t, gid_t, std::string>;  // the last: the pid namespace
  const Helper& helper_for(pid_t thread, uid_t uid, gid_t gid);

  std::map<Kind, Helper> helpers_;
};

// Returns whether the kernel has Landlock at all.
bool has_landlock();

}  // namespace ppmr
