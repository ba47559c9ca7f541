#include "processes/memory/asked_attributes.h"

#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "processes/memory/injected_calls.h"

namespace ppmr {
namespace {

constexpr uint64_t kGetMdwe = 66;  // PR_GET_MDWE, Linux 6.3

uint64_t id(int keyring) { return static_cast<uint64_t>(static_cast<int64_t>(keyring)); }

}  // namespace

std::optional<AskedAttributes> ask_attributes(pid_t pid) {
  AskedAttributes told;
  const Status asked = with_injected_calls(pid, [&](InjectedCalls& calls) -> Status {
    const auto mdwe = calls.call(SYS_prctl, {kGetMdwe, 0, 0});
    if (!mdwe) return failure(mdwe.error());
    told.denies_write_execute = *mdwe > 0;  // an older kernel: EINVAL
    for (const int keyring : {KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_THREAD_KEYRING}) {
      constexpr uint64_t kCreatesNone = 0;
      const auto found = calls.call(SYS_keyctl, {KEYCTL_GET_KEYRING_ID, id(keyring), kCreatesNone});
      if (!found) return failure(found.error());
      told.has_keyring = told.has_keyring || *found > 0;
    }
    return {};
  });
  return asked ? std::optional(told) : std::nullopt;
}

}  // namespace ppmr
