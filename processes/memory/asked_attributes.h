// What only the process itself can tell, so it is asked by injected system calls that change
// nothing. CRIU forgets it.
#pragma once

#include <sys/types.h>

#include <optional>

namespace ppmr {

struct AskedAttributes {
  // The process may not make memory executable (MDWE, prctl(PR_SET_MDWE), as systemd sets it for
  // MemoryDenyWriteExecute=).
  bool denies_write_execute = false;
  // It has a keyring of the process or of its first thread (keyrings(7)). The keyring of its
  // session is not meant: that belongs to a login.
  bool has_keyring = false;
  // It has an io_uring that it uses by a registered index, with or without a descriptor: known of
  // the thread that was asked.
  bool has_registered_ring = false;
  // It dispatches its own system calls (prctl(PR_SET_SYSCALL_USER_DISPATCH)). Its handler would get
  // calls of CRIU, too, and CRIU blocks the signal: the kernel ends the process. Known of the
  // thread that was asked; before Linux 6.4 only if it dispatches at that moment.
  bool dispatches_calls = false;
};

// Stops the process for about 100 us. nullopt: it cannot be asked, see with_injected_calls().
// Threads: any.
std::optional<AskedAttributes> ask_attributes(pid_t pid);

}  // namespace ppmr
