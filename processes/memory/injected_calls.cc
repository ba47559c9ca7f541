#include "processes/memory/injected_calls.h"

#include <elf.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "processes/memory/restartable_sequence.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kCodeMaxBytes = 64 << 10;  // larger than any vdso
constexpr uint64_t kCodeOf64Bit = 0x33;     // the code segment, arch/x86/include/asm/segment.h

// PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, Linux 6.4.
constexpr int kGetSyscallUserDispatch = 0x4211;
struct SyscallUserDispatch {
  uint64_t mode = 0;  // 0: off
  uint64_t selector = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

#ifdef __x86_64__
constexpr bool kKnowsThisMachine = true;
#else
constexpr bool kKnowsThisMachine = false;
#endif

// Returns the start and the end of the mapping of the kernel's own code.
std::pair<uint64_t, uint64_t> find_vdso(const std::string& maps) {
  const size_t name = maps.find("[vdso]");
  if (name == std::string::npos) return {};
  const size_t newline = maps.rfind('\n', name);
  const size_t line = newline == std::string::npos ? 0 : newline + 1;
  std::pair<uint64_t, uint64_t> found;
  const char* const last = maps.data() + name;
  const auto [dash, error] = std::from_chars(maps.data() + line, last, found.first, 16);
  if (error != std::errc() || dash == last) return {};
  std::from_chars(dash + 1, last, found.second, 16);
  return found;
}

bool can_execute(pid_t thread) {
  const auto stat = read_process_stat(thread);
  return stat && !stat->is_dead() && !stat->is_exiting;
}

// Returns `pid`, or another thread: the first one may have ended before the others.
Result<pid_t> living_thread(pid_t pid) {
  if (can_execute(pid)) return pid;
  const auto threads = read_threads(pid);
  if (!threads) return failure(threads.error());
  for (const pid_t thread : *threads) {
    if (can_execute(thread)) return thread;
  }
  return failure(ESRCH, fmt::format("process {} has ended", pid));
}

}  // namespace

InjectedCalls::InjectedCalls(InjectedCalls&& other) noexcept
    : thread_(std::move(other.thread_)),
      instruction_(other.instruction_),
      mask_(other.mask_),
      registers_(other.registers_),
      are_dispatched_(other.are_dispatched_),
      is_prepared_(std::exchange(other.is_prepared_, false)) {}

InjectedCalls::~InjectedCalls() {
  if (!is_prepared_) return;
  iovec all{&registers_, sizeof(registers_)};
  ptrace(PTRACE_SETREGSET, thread_.id(), NT_PRSTATUS, &all);
  ptrace(PTRACE_SETSIGMASK, thread_.id(), sizeof(mask_), &mask_);
  // The kernel restarts an interrupted call only when the thread leaves this kind of stop.
  (void)thread_.run_to_restart_stop();
}

Status with_injected_calls(pid_t pid, const std::function<Status(InjectedCalls&)>& work) {
  Status done;
  std::thread([&] {
    auto calls = InjectedCalls::stop(pid);
    done = calls ? work(*calls) : failure(calls.error());
  }).join();
  return done;
}

Result<InjectedCalls> InjectedCalls::stop(pid_t pid) {
  if (!kKnowsThisMachine) {
    return failure(EOPNOTSUPP, "system calls can be injected on x86-64 only");
  }
  const auto thread = living_thread(pid);
  if (!thread) return failure(thread.error());
  auto stopped = StoppedThread::stop(*thread);
  if (!stopped) return failure(stopped.error());
  InjectedCalls calls(std::move(*stopped));
  if (Status prepared = calls.prepare(); !prepared) return failure(prepared.error());
  return calls;
}

Error InjectedCalls::error(const char* what) const {
  return system_failure(what, fmt::format("thread {}", thread_.id())).value();
}

Status InjectedCalls::prepare() {
  const auto status = read_process_status(thread_.id());
  if (!status) return failure(status.error());
  if (status->seccomp_mode != 0) {
    // The filter could kill the process for an injected call.
    constexpr uint64_t kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP;
    const Status suspended = thread_.trace(PTRACE_SETOPTIONS, "suspend the seccomp filter of",
                                           reinterpret_cast<void*>(kOptions));
    if (!suspended) return failure(EOPNOTSUPP, suspended.error().message);
  }
  iovec all{&registers_, sizeof(registers_)};
  if (ptrace(PTRACE_GETREGSET, thread_.id(), NT_PRSTATUS, &all) != 0) {
    return tl::unexpected(error("read the registers of"));
  }
#ifdef __x86_64__
  if (all.iov_len != sizeof(registers_) || registers_.cs != kCodeOf64Bit) {
    return failure(EOPNOTSUPP, fmt::format("run a call in thread {}: the thread runs 32-bit code",
                                           thread_.id()));
  }
  // The thread gets these registers back after the last call.
  const bool is_in_call = static_cast<int64_t>(registers_.orig_rax) >= 0;
  const auto next = ip_after_interruption(thread_.id(), registers_.rip, is_in_call);
  if (!next) return failure(next.error());
  registers_.rip = *next;
#endif
  SyscallUserDispatch dispatch;
  are_dispatched_ = ptrace(static_cast<__ptrace_request>(kGetSyscallUserDispatch), thread_.id(),
                           sizeof(dispatch), &dispatch) == 0 &&
                    dispatch.mode != 0;
  if (Status found = find_instruction(); !found) return found;
  if (ptrace(PTRACE_GETSIGMASK, thread_.id(), sizeof(mask_), &mask_) != 0) {
    return tl::unexpected(error("read the signal mask of"));
  }
  // Keeps handlers from running between the calls. SIGSYS stays unblocked: if the kernel forces a
  // blocked SIGSYS, it resets the handler of the process.
  const uint64_t all_but_sigsys = ~(uint64_t{1} << (SIGSYS - 1));
  if (ptrace(PTRACE_SETSIGMASK, thread_.id(), sizeof(all_but_sigsys), &all_but_sigsys) != 0) {
    return tl::unexpected(error("block the signals of"));
  }
  is_prepared_ = true;
  return {};
}

Status InjectedCalls::find_instruction() {
  const auto maps = read_process_file(thread_.id(), "maps");
  if (!maps) return failure(maps.error());
  const auto [start, end] = find_vdso(*maps);
  if (start >= end)
    return failure(EOPNOTSUPP,
                   fmt::format("run a call in thread {}: the thread has no vdso", thread_.id()));
  std::vector<unsigned char> code(std::min<uint64_t>(end - start, kCodeMaxBytes));
  const iovec local{code.data(), code.size()};
  const iovec remote{reinterpret_cast<void*>(start), code.size()};
  const ssize_t n = process_vm_readv(thread_.id(), &local, 1, &remote, 1, 0);
  if (n < 0) return system_failure("read the code of", fmt::format("thread {}", thread_.id()));
  code.resize(static_cast<size_t>(n));
  constexpr std::array<unsigned char, 2> kSyscall = {0x0f, 0x05};
  const auto found = std::search(code.begin(), code.end(), kSyscall.begin(), kSyscall.end());
  if (found == code.end()) {
    return failure(EOPNOTSUPP,
                   fmt::format("run a call in thread {}: its vdso has no system call instruction",
                               thread_.id()));
  }
  instruction_ = start + static_cast<uint64_t>(found - code.begin());
  return {};
}

Result<long> InjectedCalls::call(long number, std::array<uint64_t, 3> arguments) {
  if (are_dispatched_) {
    return failure(EOPNOTSUPP,
                   fmt::format("thread {} dispatches its own system calls", thread_.id()));
  }
#ifdef __x86_64__
  user_regs_struct at_call = registers_;
  at_call.rip = instruction_;
  at_call.rax = static_cast<uint64_t>(number);
  at_call.orig_rax = ~0ULL;  // else the kernel would restart the interrupted call now
  at_call.rdi = arguments[0];
  at_call.rsi = arguments[1];
  at_call.rdx = arguments[2];
  at_call.r10 = at_call.r8 = at_call.r9 = 0;
  iovec all{&at_call, sizeof(at_call)};
  if (ptrace(PTRACE_SETREGSET, thread_.id(), NT_PRSTATUS, &all) != 0) {
    return tl::unexpected(error("set the registers of"));
  }
  for (int stop = 0; stop < 2; ++stop) {  // at the entry of the call, and at its end
    if (Status ran = thread_.run_to_call_stop(); !ran) {
      are_dispatched_ = ran.error().errno_value == EOPNOTSUPP;
      return failure(ran.error());
    }
  }
  all = {&at_call, sizeof(at_call)};
  if (ptrace(PTRACE_GETREGSET, thread_.id(), NT_PRSTATUS, &all) != 0) {
    return tl::unexpected(error("read the registers of"));
  }
  return static_cast<long>(at_call.rax);
#else
  (void)number;
  (void)arguments;
  return failure(EOPNOTSUPP, "system calls can be injected on x86-64 only");
#endif
}

Result<long> InjectedCalls::call_with_memory(long number, std::array<uint64_t, 3> arguments,
                                             size_t at, std::span<uint64_t> memory) {
  if (memory.size() > kMemoryWords) return failure(EINVAL, "too much memory for a system call");
#ifdef __x86_64__
  // The ABI reserves the 128 bytes below the stack pointer for the thread, and the thread is
  // stopped.
  constexpr uint64_t kBelowStack = 64;
  static_assert(kMemoryWords * sizeof(uint64_t) <= kBelowStack - sizeof(uint64_t));
  const uint64_t address = (registers_.rsp - kBelowStack) & ~uint64_t{sizeof(long) - 1};
#else
  constexpr uint64_t address = 0;
#endif
  const auto word = [&](size_t i) {
    return reinterpret_cast<void*>(address + i * sizeof(uint64_t));
  };
  std::array<long, kMemoryWords> before{};
  for (size_t i = 0; i < memory.size(); ++i) {
    errno = 0;
    before.at(i) = ptrace(PTRACE_PEEKDATA, thread_.id(), word(i), nullptr);
    if (errno != 0) return tl::unexpected(error("read the stack of"));
  }
  bool is_written = true;
  for (size_t i = 0; i < memory.size(); ++i) {
    is_written &= ptrace(PTRACE_POKEDATA, thread_.id(), word(i), memory[i]) == 0;
  }
  arguments.at(at) = address;
  auto answer = is_written ? call(number, arguments) : failure(error("write the stack of"));
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<uint64_t>(ptrace(PTRACE_PEEKDATA, thread_.id(), word(i), nullptr));
    is_written &= ptrace(PTRACE_POKEDATA, thread_.id(), word(i), before.at(i)) == 0;
  }
  if (answer && !is_written) return tl::unexpected(error("write the stack of"));
  return answer;
}

Result<std::optional<uint32_t>> InjectedCalls::call_for_number(long number,
                                                               std::array<uint64_t, 3> arguments,
                                                               size_t at) {
  uint64_t filled = 0;
  const auto answer = call_with_memory(number, arguments, at, {&filled, 1});
  if (!answer) return failure(answer.error());
  if (*answer < 0) return std::nullopt;
  return static_cast<uint32_t>(filled);
}

}  // namespace ppmr
