#include "processes/carried/thread_attributes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/ioprio.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/unique_fd.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr uint32_t kCpusMax = 8192;  // the most that Linux can have (CONFIG_NR_CPUS)

// From linux/sched.h and linux/sched/types.h, which cannot be included together with <sched.h>.
constexpr uint64_t kResetOnFork = 0x01;
constexpr uint64_t kReclaim = 0x02;
constexpr uint64_t kDeadlineOverrun = 0x04;
constexpr uint64_t kClamps = 0x60;
constexpr uint32_t kDeadlinePolicy = 6;
struct SchedulingAttributes {
  uint32_t size;
  uint32_t sched_policy;
  uint64_t sched_flags;
  int32_t sched_nice;
  uint32_t sched_priority;
  uint64_t sched_runtime;
  uint64_t sched_deadline;
  uint64_t sched_period;
  uint32_t sched_util_min;
  uint32_t sched_util_max;
};

using CpuBits = std::array<uint64_t, kCpusMax / 64>;

// The system call returns how many bytes this kernel uses. Reads only these bytes.
Result<Cpus> affinity_of(pid_t thread) {
  CpuBits bits{};
  const long size = syscall(SYS_sched_getaffinity, thread, sizeof(bits), bits.data());
  if (size < 0) return system_failure("read the CPU affinity of thread", std::to_string(thread));
  Cpus cpus;
  for (uint32_t cpu = 0; cpu < static_cast<uint32_t>(size) * 8; ++cpu) {
    if ((bits[cpu / 64] >> (cpu % 64) & 1) != 0) cpus.insert(cpu);
  }
  return cpus;
}

long set_affinity(pid_t thread, const Cpus& cpus) {
  CpuBits bits{};
  for (const uint32_t cpu : cpus) {
    if (cpu < kCpusMax) bits[cpu / 64] |= uint64_t{1} << (cpu % 64);
  }
  return syscall(SYS_sched_setaffinity, thread, sizeof(bits), bits.data());
}

std::optional<uint64_t> number_in(pid_t pid, const std::string& file, int base) {
  const auto text = read_process_file(pid, file);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text->c_str(), &end, base);
  return end == text->c_str() ? std::nullopt : std::optional(value);
}

Status write_number(pid_t pid, const std::string& file, const std::string& value) {
  const std::string path = fmt::format("/proc/{}/{}", pid, file);
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || write(fd.get(), value.data(), value.size()) < 0) {
    return system_failure(fmt::format("write {} to", value), path);
  }
  return {};
}

Result<SchedulingAttributes> scheduling_of(pid_t thread) {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, thread, &attributes, sizeof(attributes), 0) != 0) {
    return system_failure("read the scheduling policy of thread", std::to_string(thread));
  }
  return attributes;
}

carried::Scheduling packed(const SchedulingAttributes& from) {
  carried::Scheduling to;
  to.set_policy(from.sched_policy);
  to.set_flags(from.sched_flags);
  to.set_nice(from.sched_nice);
  to.set_priority(from.sched_priority);
  to.set_runtime(from.sched_runtime);
  to.set_deadline(from.sched_deadline);
  to.set_period(from.sched_period);
  to.set_util_min(from.sched_util_min);
  to.set_util_max(from.sched_util_max);
  return to;
}

SchedulingAttributes unpacked(const carried::Scheduling& from) {
  SchedulingAttributes to{};
  to.size = sizeof(to);
  to.sched_policy = from.policy();
  to.sched_flags = from.flags();
  to.sched_nice = from.nice();
  to.sched_priority = from.priority();
  to.sched_runtime = from.runtime();
  to.sched_deadline = from.deadline();
  to.sched_period = from.period();
  to.sched_util_min = from.util_min();
  to.sched_util_max = from.util_max();
  return to;
}

bool has_clamps(const SchedulingAttributes& attributes) {
  return attributes.sched_util_min != 0 || attributes.sched_util_max != 0;
}

bool same_scheduling(const SchedulingAttributes& a, const SchedulingAttributes& b) {
  // A kernel without utilization clamps reports zeros.
  const bool clamps =
      !has_clamps(a) || !has_clamps(b) ||
      (a.sched_util_min == b.sched_util_min && a.sched_util_max == b.sched_util_max);
  // `sched_runtime` is the time slice in other policies, which the kernel chooses.
  const bool deadline = a.sched_policy != kDeadlinePolicy ||
                        (a.sched_runtime == b.sched_runtime &&
                         a.sched_deadline == b.sched_deadline && a.sched_period == b.sched_period);
  return clamps && deadline && a.sched_policy == b.sched_policy &&
         (a.sched_flags & kResetOnFork) == (b.sched_flags & kResetOnFork) &&
         a.sched_nice == b.sched_nice && a.sched_priority == b.sched_priority;
}

Status apply_scheduling(const carried::Scheduling& wanted, pid_t thread) {
  SchedulingAttributes attributes = unpacked(wanted);
  const auto now = scheduling_of(thread);
  if (!now) return failure(now.error());
  if (same_scheduling(attributes, *now)) return {};
  attributes.sched_flags &= kResetOnFork | kReclaim | kDeadlineOverrun;
  if (attributes.sched_policy != kDeadlinePolicy) {
    attributes.sched_runtime = attributes.sched_deadline = attributes.sched_period = 0;
  }
  if (has_clamps(attributes) && has_clamps(*now)) {
    attributes.sched_flags |= kClamps;
  }
  if (syscall(SYS_sched_setattr, thread, &attributes, 0) != 0) {
    return system_failure("set the scheduling policy of thread", std::to_string(thread));
  }
  return {};
}

std::string list_of_cpus(const Cpus& cpus) {
  std::string text;
  for (const uint32_t cpu : cpus) text += (text.empty() ? "" : ",") + std::to_string(cpu);
  return text;
}

Status apply_cpus(const carried::Thread& wanted, pid_t thread, const Cpus& allowed,
                  std::vector<std::string>& warnings) {
  const Cpus cpus(wanted.cpus().begin(), wanted.cpus().end());
  if (cpus.empty()) return {};
  const auto now = affinity_of(thread);
  if (!now) return failure(now.error());
  const Cpus chosen = choose_cpus(cpus, allowed);
  if (chosen != cpus) {
    warnings.push_back(fmt::format(
        "thread {} may run only on the CPUs {}, and this node allows {}", thread,
        list_of_cpus(cpus),
        chosen.empty() ? "none of them: it may run on all CPUs" : "only " + list_of_cpus(chosen)));
  }
  if (chosen.empty() || chosen == *now) return {};
  if (set_affinity(thread, chosen) != 0) {
    return system_failure("set the CPU affinity of thread", std::to_string(thread));
  }
  return {};
}

}  // namespace

Cpus parse_cpus(const std::string& text) {
  Cpus cpus;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    unsigned first = 0;
    unsigned last = 0;
    const int read = std::sscanf(range.c_str(), "%u-%u", &first, &last);
    if (read < 1) continue;
    if (read == 1) last = first;
    for (unsigned cpu = first; cpu <= last && cpu < kCpusMax; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

Cpus choose_cpus(const Cpus& wanted, const Cpus& allowed) {
  Cpus chosen;
  std::set_intersection(wanted.begin(), wanted.end(), allowed.begin(), allowed.end(),
                        std::inserter(chosen, chosen.end()));
  return chosen;
}

Result<carried::Thread> read_thread(pid_t thread, const Cpus& allowed) {
  carried::Thread read;
  const auto cpus = affinity_of(thread);
  if (!cpus) return failure(cpus.error());
  if (!std::includes(cpus->begin(), cpus->end(), allowed.begin(), allowed.end())) {
    for (const uint32_t cpu : *cpus) read.add_cpus(cpu);
  }
  const long priority = syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread);
  if (priority < 0)
    return system_failure("read the I/O priority of thread", std::to_string(thread));
  read.set_io_priority(static_cast<uint32_t>(priority));
  read.set_timer_slack_ns(number_in(thread, "timerslack_ns", 10).value_or(0));
  const auto scheduling = scheduling_of(thread);
  if (!scheduling) return failure(scheduling.error());
  *read.mutable_scheduling() = packed(*scheduling);
  return read;
}

Status apply_thread(const carried::Thread& wanted, pid_t thread, const Cpus& allowed,
                    std::vector<std::string>& warnings) {
  // A thread with a deadline must be allowed to use all CPUs, so the kernel refuses the affinity.
  if (Status applied = apply_scheduling(wanted.scheduling(), thread); !applied) return applied;
  if (Status applied = apply_cpus(wanted, thread, allowed, warnings); !applied) return applied;
  if (syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread) !=
          static_cast<long>(wanted.io_priority()) &&
      syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread, wanted.io_priority()) != 0) {
    return system_failure("set the I/O priority of thread", std::to_string(thread));
  }
  const uint64_t slack = wanted.timer_slack_ns();
  if (slack == 0 || number_in(thread, "timerslack_ns", 10) == slack) return {};
  return write_number(thread, "timerslack_ns", std::to_string(slack));
}

namespace {

// "/autogroup-25 nice 5"
std::optional<int> group_nice_of(pid_t pid) {
  const auto text = read_process_file(pid, "autogroup");
  if (!text) return std::nullopt;
  const size_t at = text->rfind("nice ");
  return at == std::string::npos ? std::nullopt : std::optional(std::atoi(text->c_str() + at + 5));
}

}  // namespace

void read_process_attributes(pid_t pid, carried::Process& process) {
  // A process that is about to end has no such attributes.
  if (const auto filter = number_in(pid, "coredump_filter", 16)) {
    process.set_core_dump_filter(static_cast<uint32_t>(*filter));
  }
  if (const auto nice = group_nice_of(pid)) process.set_group_nice(*nice);
}

Status apply_process_attributes(const carried::Process& wanted, pid_t pid,
                                std::vector<std::string>& warnings) {
  if (wanted.has_core_dump_filter() &&
      number_in(pid, "coredump_filter", 16) != wanted.core_dump_filter()) {
    const Status written =
        write_number(pid, "coredump_filter", fmt::format("{:#x}", wanted.core_dump_filter()));
    if (!written) return written;
  }
  const auto nice = group_nice_of(pid);
  if (wanted.has_group_nice() && wanted.group_nice() != 0 && !nice) {
    warnings.push_back(fmt::format(
        "the session of process {} has the nice value {} (autogroup), and this node has no "
        "autogroups",
        pid, wanted.group_nice()));
  }
  if (!wanted.has_group_nice() || !nice || *nice == wanted.group_nice()) return {};
  return write_number(pid, "autogroup", std::to_string(wanted.group_nice()));
}

}  // namespace ppmr
