// Attributes that the kernel shows only to the process itself. ppmr reads them with injected system
// calls that change nothing. CRIU does not save these attributes.
#pragma once

#include <sys/types.h>

#include <optional>

namespace ppmr {

struct AskedAttributes {
  // The process may not make memory executable (MDWE, prctl(PR_SET_MDWE), as systemd sets it for
  // MemoryDenyWriteExecute=).
  bool denies_write_execute = false;
  // The process or the thread has a keyring of its own (keyrings(7)). The keyring of the session
  // does not count, because it belongs to a login.
  bool has_keyring = false;
  // The process has an io_uring that it uses by a registered index, with or without a descriptor.
  bool has_registered_ring = false;
  // The process dispatches its own system calls (prctl(PR_SET_SYSCALL_USER_DISPATCH)). The kernel
  // would also dispatch CRIU's calls in the process. CRIU blocks the signal, so the kernel would
  // end the process. Before Linux 6.4 ppmr notices this only if the process dispatches calls at
  // that moment.
  bool dispatches_calls = false;
  // The instructions RDTSC or CPUID end in a signal (prctl(PR_SET_TSC), ARCH_SET_CPUID).
  bool faults_on_cpu_queries = false;
  // The process has segments of its own (modify_ldt(2)), as 16-bit code and old thread libraries
  // do.
  bool has_segments = false;

  AskedAttributes& operator|=(const AskedAttributes& other);
};

// Reads the attributes of one thread, and stops it for about 100 us (with_injected_calls()). The
// other threads of its process may have other attributes. nullopt: calls cannot be injected into
// it. Threads: any.
std::optional<AskedAttributes> ask_attributes(pid_t thread);

}  // namespace ppmr
