#include "processes/memory/write_protection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "processes/memory/injected_calls.h"
#include "processes/memory/page_index.h"

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

// Lets the kernel write to memory of this process. Returns whether it could.
bool kernel_can_write(void* to) { return syscall(SYS_clock_gettime, CLOCK_MONOTONIC, to) == 0; }

// Returns whether mremap(2) ends the protection of the pages that it moves.
//
// mremap(2) always ends the tracking of the memory, because the tracker wants no event of it. Some
// kernels leave the pages protected: Linux 6.7 and later, if they lack "mm: clear uffd-wp PTE/PMD
// state on mremap()" (0cef0bb836e3, January 2025). A write of the process does not change the mark
// of such a page. When the next round tracks the new address, the pages look unwritten, and those
// that were written meanwhile look so after later writes, too. If a round had sent other memory
// that was at this address before, its copy would be taken for their content.
//
// Tests this with a userfaultfd that refuses writes of the kernel to protected pages. That needs no
// file in /proc, which a process that makes no core dumps may not open.
bool mremap_ends_protection() {
  const UniqueFd events(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly)));
  uffdio_api api{.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP, .ioctls = 0};
  if (!events || ioctl(events.get(), UFFDIO_API, &api) != 0) return false;
  // The page, and behind it the place to which it moves.
  void* const page =
      mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  void* const place = static_cast<std::byte*>(page) + kPageBytes;
  const auto track = [&](void* at) {
    uffdio_register request{.range = {reinterpret_cast<uint64_t>(at), kPageBytes},
                            .mode = UFFDIO_REGISTER_MODE_WP,
                            .ioctls = 0};
    return ioctl(events.get(), UFFDIO_REGISTER, &request) == 0;
  };
  *static_cast<volatile char*>(page) = 1;  // only a page in use can be protected
  uffdio_writeprotect protect{.range = {reinterpret_cast<uint64_t>(page), kPageBytes},
                              .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  const bool is_protected = track(page) &&
                            ioctl(events.get(), UFFDIO_WRITEPROTECT, &protect) == 0 &&
                            !kernel_can_write(page);
  const bool has_moved =
      mremap(page, kPageBytes, kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) != MAP_FAILED;
  const bool ends = is_protected && has_moved && track(place) && kernel_can_write(place);
  // After the move, another thread may have mapped memory where the page was.
  munmap(has_moved ? place : page, has_moved ? kPageBytes : 2 * kPageBytes);
  return ends;
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
  return own && enable(own) && mremap_ends_protection();
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
