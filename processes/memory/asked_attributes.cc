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
// only reads, and its answer cannot be written to this address.
constexpr long kRegister = 427;
constexpr uint64_t kProbeRegistered = 8 | 1U << 31;
constexpr uint64_t kNoAddress = ~uint64_t{0};
constexpr uint64_t kRingsMax = 16;  // of a thread

Result<bool> has_registered_ring(InjectedCalls& calls) {
  for (uint64_t index = 0; index < kRingsMax; ++index) {
    const auto answer = calls.call(kRegister, {index, kProbeRegistered, kNoAddress});
    if (!answer) return failure(answer.error());
    if (*answer == -EFAULT) return true;
    if (*answer != -EBADF) return false;  // the thread has never used io_uring
  }
  return false;
}

uint64_t id(int keyring) { return static_cast<uint64_t>(static_cast<int64_t>(keyring)); }

}  // namespace

std::optional<AskedAttributes> ask_attributes(pid_t pid) {
  AskedAttributes told;
  const Status asked = with_injected_calls(pid, [&](InjectedCalls& calls) -> Status {
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
    return {};
  });
  return asked ? std::optional(told) : std::nullopt;
}

}  // namespace ppmr
