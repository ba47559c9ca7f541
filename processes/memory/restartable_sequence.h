// Restartable sequences (rseq(2)): a thread changes data of its processor without a lock, in a
// section of code that it must not finish after an interruption. If the instruction pointer is in
// the section when the interruption ends, the kernel aborts the section: the thread continues at
// the abort address. An injected call moves the instruction pointer out of the section. The kernel
// then forgets the section without an abort, so the injector must abort it.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/result.h"

namespace ppmr {

// struct rseq_cs of linux/rseq.h, the same for 32-bit code.
struct RestartableSection {
  uint32_t version = 0;
  // RSEQ_CS_FLAG_NO_RESTART_*: with these flags for debuggers, the kernel does not abort the
  // section. Since Linux 6.1 the kernel ends a thread that sets one. ppmr ignores the flags: an
  // abort is correct at each instruction of a section, but to continue the section may be wrong.
  uint32_t flags = 0;
  uint64_t start_ip = 0;
  uint64_t post_commit_offset = 0;  // the length of the section
  uint64_t abort_ip = 0;
};

// Returns where a thread that was interrupted at `ip` continues: outside of the section at `ip`.
constexpr uint64_t ip_after_interruption(uint64_t ip, const RestartableSection& section) {
  // Compares as the kernel does, without an overflow (in_rseq_cs() of kernel/rseq.c).
  return ip - section.start_ip < section.post_commit_offset ? section.abort_ip : ip;
}

// Does the same for a thread that this thread has stopped by ptrace(2) at `ip`. `is_in_call`: the
// thread is in a system call. Does not change the thread: the kernel itself forgets the section
// when the thread runs outside of it. Errors: EINVAL if the section is invalid (the kernel would
// end the thread); EOPNOTSUPP if the kernel does not report the section (before Linux 5.13) and the
// thread may be in one; those of ptrace(2) and process_vm_readv(2).
Result<uint64_t> ip_after_interruption(pid_t thread, uint64_t ip, bool is_in_call);

}  // namespace ppmr
