#include "processes/memory/asked_attributes.h"

#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>

#include "processes/memory/injected_calls.h"

namespace ppmr {
namespace {

constexpr uint64_t kGetMdwe = 66;  // PR_GET_MDWE, Linux 6.3

// IORING_REGISTER_PROBE of a registered ring (IORING_REGISTER_USE_REGISTERED_RING, Linux 6.3). It
// only reads, and the kernel cannot write the result to kNoAddress, so the call changes nothing.
constexpr long kRegister = 427;
constexpr uint64_t kProbeRegistered = 8 | 1U << 31;
constexpr uint64_t kNoAddress = ~uint64_t{0};
constexpr uint64_t kRingsMax = 16;  // the most that a thread can register

Result<bool> has_registered_ring(InjectedCalls& calls) {
  for (uint64_t index = 0; index < kRingsMax; ++index) {
    const auto answer = calls.call(kRegister, {index, kProbeRegistered, kNoAddress});
    if (!answer) return failure(answer.error());
    if (*answer == -EFAULT) return true;
    if (*answer != -EBADF) return false;  // the thread has never used io_uring
  }
  return false;
}

constexpr uint64_t kGetCpuid = 0x1011;  // ARCH_GET_CPUID, Linux 4.12
constexpr uint64_t kReadTable = 0;      // a function of modify_ldt(2)
constexpr uint64_t kEntryBytes = 8;

Result<bool> faults_on_cpu_queries(InjectedCalls& calls) {
#ifdef __x86_64__
  const auto tsc = calls.call_for_number(SYS_prctl, {PR_GET_TSC, 0, 0}, 1);
  if (!tsc) return failure(tsc.error());
  if (*tsc == uint32_t{PR_TSC_SIGSEGV}) return true;
  const auto cpuid = calls.call(SYS_arch_prctl, {kGetCpuid, 0, 0});
  if (!cpuid) return failure(cpuid.error());
  return *cpuid == 0;  // an older kernel: EINVAL
#else
  (void)calls;
  return false;
#endif
}

// If the process has no table, the kernel copies nothing, so the bad address causes no error.
Result<bool> has_segments(InjectedCalls& calls) {
#ifdef __x86_64__
  const auto answer = calls.call(SYS_modify_ldt, {kReadTable, kNoAddress, kEntryBytes});
  if (!answer) return failure(answer.error());
  return static_cast<int>(*answer) == -EFAULT;  // the kernel returns 32 bits
#else
  (void)calls;
  return false;
#endif
}

uint64_t id(int keyring) { return static_cast<uint64_t>(static_cast<int64_t>(keyring)); }

}  // namespace

AskedAttributes& AskedAttributes::operator|=(const AskedAttributes& other) {
  denies_write_execute |= other.denies_write_execute;
  has_keyring |= other.has_keyring;
  has_registered_ring |= other.has_registered_ring;
  dispatches_calls |= other.dispatches_calls;
  faults_on_cpu_queries |= other.faults_on_cpu_queries;
  has_segments |= other.has_segments;
  return *this;
}

std::optional<AskedAttributes> ask_attributes(pid_t thread) {
  AskedAttributes told;
  const Status asked = with_injected_calls(thread, [&](InjectedCalls& calls) -> Status {
    const auto mdwe = calls.call(SYS_prctl, {kGetMdwe, 0, 0});
    told.dispatches_calls = calls.are_dispatched();
    if (told.dispatches_calls) return {};
    if (!mdwe) return failure(mdwe.error());
    told.denies_write_execute = *mdwe > 0;  // an older kernel: EINVAL
    for (const int keyring : {KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_THREAD_KEYRING}) {
      constexpr uint64_t kCreatesNone = 0;
      const auto found = calls.call(SYS_keyctl, {KEYCTL_GET_KEYRING_ID, id(keyring), kCreatesNone});
      if (!found) return failure(found.error());
      told.has_keyring = told.has_keyring || *found > 0;
    }
    const auto ring = has_registered_ring(calls);
    if (!ring) return failure(ring.error());
    told.has_registered_ring = *ring;
    const auto faults = faults_on_cpu_queries(calls);
    if (!faults) return failure(faults.error());
    told.faults_on_cpu_queries = *faults;
    const auto segments = has_segments(calls);
    if (!segments) return failure(segments.error());
    told.has_segments = *segments;
    return {};
  });
  return asked ? std::optional(told) : std::nullopt;
}

}  // namespace ppmr
