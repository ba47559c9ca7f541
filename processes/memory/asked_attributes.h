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
  // It has a keyring of the process or of the thread (keyrings(7)). The keyring of its session is
  // not meant: that belongs to a login.
  bool has_keyring = false;
  // It has an io_uring that it uses by a registered index, with or without a descriptor.
  bool has_registered_ring = false;
  // It dispatches its own system calls (prctl(PR_SET_SYSCALL_USER_DISPATCH)). Its handler would get
  // calls of CRIU, too, and CRIU blocks the signal: the kernel ends the process. Before Linux 6.4
  // only known if it dispatches at that moment.
  bool dispatches_calls = false;
  // The instructions RDTSC or CPUID end in a signal (prctl(PR_SET_TSC), ARCH_SET_CPUID).
  bool faults_on_cpu_queries = false;
  // It has segments of its own (modify_ldt(2)), which 16-bit code and old thread libraries use.
  bool has_segments = false;

  AskedAttributes& operator|=(const AskedAttributes& other);
};

// Asks one thread, see with_injected_calls(), and stops it for about 100 us. The other threads of
// its process may have other attributes. nullopt: it cannot be asked. Threads: any.
std::optional<AskedAttributes> ask_attributes(pid_t thread);

}  // namespace ppmr
