#include "processes/memory/restartable_sequence.h"

#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace ppmr {
namespace {

// PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13.
constexpr int kGetRseqConfiguration = 0x420f;
struct RseqConfiguration {
  uint64_t area = 0;  // the address of struct rseq; 0: the thread has registered none
  uint32_t area_size_bytes = 0;
  uint32_t signature = 0;
  uint32_t flags = 0;
  uint32_t padding = 0;
};
constexpr uint64_t kOffsetOfSection = 8;  // of `rseq_cs` in struct rseq

bool kernel_has_rseq() {
  constexpr int kInvalidFlags = -1;  // so the call changes nothing
  return syscall(SYS_rseq, nullptr, 0, kInvalidFlags, 0) == 0 || errno != ENOSYS;
}

template <typename T>
Result<T> read_at(pid_t thread, uint64_t address) {
  T value{};
  const iovec local{&value, sizeof(value)};
  const iovec remote{reinterpret_cast<void*>(address), sizeof(value)};
  const ssize_t n = process_vm_readv(thread, &local, 1, &remote, 1, 0);
  if (n == static_cast<ssize_t>(sizeof(value))) return value;
  return system_failure("read the restartable sequence of", fmt::format("thread {}", thread),
                        n < 0 ? errno : EFAULT);
}

}  // namespace

Result<uint64_t> ip_after_interruption(pid_t thread, uint64_t ip, bool is_in_call) {
  RseqConfiguration registered;
  if (ptrace(static_cast<__ptrace_request>(kGetRseqConfiguration), thread, sizeof(registered),
             &registered) < 0) {
    if (errno != EIO && errno != EINVAL) {
      return system_failure("read the rseq configuration of", fmt::format("thread {}", thread));
    }
    // The kernel does not know the request: it is older, or it has no restartable sequences. A
    // section must not contain system calls, so a thread in a call is in no section. Any other
    // thread may be in one, so no call is injected. The thread continues with unchanged registers,
    // and the kernel aborts its section.
    if (is_in_call || !kernel_has_rseq()) return ip;
    return failure(
        EOPNOTSUPP,
        fmt::format("run a call in thread {}: it may be in a restartable sequence, which "
                    "the kernel reports since Linux 5.13 only",
                    thread));
  }
  if (registered.area == 0) return ip;
  const auto address = read_at<uint64_t>(thread, registered.area + kOffsetOfSection);
  if (!address) return failure(address.error());
  if (*address == 0) return ip;
  const auto section = read_at<RestartableSection>(thread, *address);
  if (!section) return failure(section.error());
  const uint64_t next = ip_after_interruption(ip, *section);
  if (next == ip) return ip;
  // Refuses an abort address without the signature, as the kernel does. So a changed section cannot
  // let the thread continue at just any address.
  const auto signature = read_at<uint32_t>(thread, next - sizeof(uint32_t));
  if (!signature) return failure(signature.error());
  if (section->version != 0 || *signature != registered.signature) {
    return failure(EINVAL, fmt::format("run a call in thread {}: its restartable sequence is "
                                       "invalid",
                                       thread));
  }
  return next;
}

}  // namespace ppmr
