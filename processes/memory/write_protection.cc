#include "processes/memory/write_protection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "processes/memory/injected_calls.h"

namespace ppmr {
namespace {

// From include/uapi/linux/userfaultfd.h. The headers of Debian 12 lack these values.
constexpr uint64_t kUserModeOnly = 1;                    // needs no right
constexpr uint64_t kProtectsUnused = uint64_t{1} << 13;  // UFFD_FEATURE_WP_UNPOPULATED
constexpr uint64_t kAsynchronous = uint64_t{1} << 15;    // UFFD_FEATURE_WP_ASYNC

// CRIU needs a descriptor in the process, too: without one the process cannot move at all.
constexpr const char* kNeedsDescriptor =
    ": a move needs a descriptor in it: raise its limit with prlimit --nofile";

// A mapping may be replaced between its registration and its scan.
constexpr int kScansMax = 5;

Result<UniqueFd> create_in(const ProcessIdentity& process) {
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!handle) return system_failure("open process", std::to_string(process.pid));
  if (!is_alive(process)) return failure(ESRCH, fmt::format("process {} has ended", process.pid));
  UniqueFd ours;
  const Status taken = with_injected_calls(process.pid, [&](InjectedCalls& calls) -> Status {
    const auto created =
        calls.call(SYS_userfaultfd, {O_CLOEXEC | O_NONBLOCK | kUserModeOnly, 0, 0});
    if (!created) return failure(created.error());
    if (*created < 0) {
      const int error = static_cast<int>(-*created);
      return failure(error,
                     fmt::format("track the memory of process {}: userfaultfd: {}{}", process.pid,
                                 std::strerror(error), error == EMFILE ? kNeedsDescriptor : ""));
    }
    ours = UniqueFd(static_cast<int>(syscall(SYS_pidfd_getfd, handle.get(), *created, 0)));
    const int error = errno;
    const auto closed = calls.call(SYS_close, {static_cast<uint64_t>(*created), 0, 0});
    if (!ours) {
      return failure(error, fmt::format("take the userfaultfd of process {}: {}", process.pid,
                                        std::strerror(error)));
    }
    return closed ? Status{} : failure(closed.error());
  });
  if (!taken) return failure(taken.error());
  return ours;
}

Status enable(const UniqueFd& events) {
  uffdio_api api{.api = UFFD_API, .features = kAsynchronous | kProtectsUnused, .ioctls = 0};
  if (ioctl(events.get(), UFFDIO_API, &api) == 0) return {};
  return failure(EOPNOTSUPP, "the kernel does not protect memory asynchronously (Linux 6.7 does)");
}

}  // namespace

std::vector<AddressRange> space_around(const std::vector<AddressRange>& memory,
                                       const std::vector<AddressRange>& others) {
  std::vector<AddressRange> spaces;
  for (const AddressRange& range : memory) {
    const auto next =
        std::partition_point(others.begin(), others.end(),
                             [&](const AddressRange& other) { return other.start < range.end; });
    const auto before =
        std::find_if(std::reverse_iterator(next), others.rend(),
                     [&](const AddressRange& other) { return other.end <= range.start; });
    const AddressRange space = {before == others.rend() ? range.start : before->end,
                                next == others.end() ? range.end : next->start};
    if (spaces.empty() || spaces.back().end < space.start) {
      spaces.push_back(space);
    } else {
      spaces.back().end = std::max(spaces.back().end, space.end);
    }
  }
  return spaces;
}

bool WriteProtection::is_possible() {
  const UniqueFd own(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly)));
  return own && enable(own);
}

Result<std::unique_ptr<WriteTracker>> WriteProtection::attach(const ProcessIdentity& process) {
  auto events = create_in(process);
  if (!events) return failure(events.error());
  if (Status enabled = enable(*events); !enabled) return failure(enabled.error());
  return std::unique_ptr<WriteTracker>(new WriteProtection(process.pid, std::move(*events)));
}

Status WriteProtection::track(const AddressRange& range) const {
  uffdio_register request{
      .range = {range.start, range.bytes()}, .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
  if (ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0) return {};
  // The range was unmapped meanwhile, or cannot be tracked. The scan shows which.
  if (errno == EINVAL || errno == EPERM) return {};
  // The address space is gone.
  if (errno == ENOMEM || errno == ESRCH) {
    return failure(ESRCH, fmt::format("process {} has ended, or executes another program", pid_));
  }
  if (errno == EBUSY) {
    return failure(EBUSY, fmt::format("track the memory of process {}: another userfaultfd has a "
                                      "part of it, of the process itself or of a program that "
                                      "watches it",
                                      pid_));
  }
  return system_failure("track", fmt::format("the memory of process {}", pid_));
}

// If a space contains memory that cannot be tracked, the kernel refuses the whole space. Then this
// function tracks the ranges of `memory` in the space one by one.
Status WriteProtection::track_around(const std::vector<AddressRange>& memory) const {
  const auto others = other_memory(pid_);
  if (!others) return failure(others.error());
  for (const AddressRange& space : space_around(memory, *others)) {
    uffdio_register request{
        .range = {space.start, space.bytes()}, .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
    if (ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0) continue;
    for (const AddressRange& range : memory) {
      if (range.start < space.start || range.end > space.end) continue;
      if (Status tracked = track(range); !tracked) return tracked;
    }
  }
  return {};
}

Status WriteProtection::count_as_written(const AddressRange& range) const {
  uffdio_writeprotect request{.range = {range.start, range.bytes()}, .mode = 0};
  if (ioctl(events_.get(), UFFDIO_WRITEPROTECT, &request) == 0) return {};
  return system_failure("stop protecting", fmt::format("the memory of process {}", pid_));
}

// If a protecting scan meets untracked memory, it may already have protected pages that it has not
// reported. Then all pages count as written.
Status WriteProtection::take_written(PageTables& tables, const AddressRange& range,
                                     const std::vector<AddressRange>& memory, const Visit& visit) {
  ScanFor what = ScanFor::kWritten;
  std::vector<AddressRange> written;
  for (int attempt = 1;; ++attempt) {
    written.clear();
    const Status scanned = tables.scan(range, what, [&](const ScannedRegion& region) -> Status {
      written.push_back(region.range);
      return {};
    });
    if (scanned) break;
    if (scanned.error().errno_value != EPERM || attempt > kScansMax) return scanned;
    // Memory that cannot be tracked counts as written each time.
    what = attempt < kScansMax ? ScanFor::kInUseProtects : ScanFor::kInUse;
    if (Status tracked = track_around(memory); !tracked) return tracked;
  }
  for (const AddressRange& region : written) {
    if (Status visited = visit(region); !visited) return visited;
  }
  return {};
}

Status WriteProtection::take_written(const std::vector<AddressRange>& memory, const Visit& visit) {
  auto tables = PageTables::open(pid_);
  if (!tables) return failure(tables.error());
  if (Status tracked = track_around(memory); !tracked) return tracked;
  for (const AddressRange& range : memory) {
    if (Status taken = take_written(*tables, range, memory, visit); !taken) return taken;
  }
  return {};
}

}  // namespace ppmr
