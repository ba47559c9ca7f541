#include "processes/memory/write_tracker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "processes/memory/injected_calls.h"
#include "processes/memory/page_index.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Of include/uapi/linux/userfaultfd.h, newer than the headers of Debian 12.
constexpr uint64_t kUserModeOnly = 1;                    // needs no right
constexpr uint64_t kProtectsUnused = uint64_t{1} << 13;  // UFFD_FEATURE_WP_UNPOPULATED
constexpr uint64_t kAsynchronous = uint64_t{1} << 15;    // UFFD_FEATURE_WP_ASYNC

// A mapping may be replaced between its registration and its scan.
constexpr int kScansMax = 5;

Result<UniqueFd> create_in(const ProcessIdentity& process) {
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!handle) return system_failure("open process", std::to_string(process.pid));
  if (!is_alive(process)) return failure(ESRCH, fmt::format("process {} has ended", process.pid));
  auto calls = InjectedCalls::stop(process.pid);
  if (!calls) return failure(calls.error());
  const auto created = calls->call(SYS_userfaultfd, {O_CLOEXEC | O_NONBLOCK | kUserModeOnly, 0, 0});
  if (!created) return failure(created.error());
  if (*created < 0) {
    return failure(static_cast<int>(-*created),
                   fmt::format("track the memory of process {}: userfaultfd: {}", process.pid,
                               std::strerror(static_cast<int>(-*created))));
  }
  UniqueFd ours(static_cast<int>(syscall(SYS_pidfd_getfd, handle.get(), *created, 0)));
  const int error = errno;
  const auto closed = calls->call(SYS_close, {static_cast<uint64_t>(*created), 0, 0});
  if (!ours) {
    return failure(error, fmt::format("take the userfaultfd of process {}: {}", process.pid,
                                      std::strerror(error)));
  }
  if (!closed) return failure(closed.error());
  return ours;
}

Status clear_soft_dirty(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/clear_refs", pid);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || write(file.get(), "4", 1) != 1) return system_failure("write to", path);
  return {};
}

// Tries it with a page of this process.
bool kernel_has_soft_dirty() {
  void* page =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const auto address = reinterpret_cast<uint64_t>(page);
  auto tables = PageTables::open(getpid());
  const auto is_dirty = [&] {
    bool dirty = false;
    (void)tables->list({address, address + kPageBytes}, [&](uint64_t, PageEntry entry) -> Status {
      dirty = entry.is_soft_dirty();
      return {};
    });
    return dirty;
  };
  *static_cast<volatile char*>(page) = 1;
  bool has = tables && is_dirty() && clear_soft_dirty(getpid()) && !is_dirty();
  *static_cast<volatile char*>(page) = 2;
  has = has && is_dirty();
  munmap(page, kPageBytes);
  return has;
}

// Linux 6.7 has both asynchronous write-protection and the scan, older kernels have neither.
bool kernel_has_scan() {
  auto tables = PageTables::open(getpid());
  const Status scanned = tables ? tables->scan({0, kPageBytes}, ScanFor::kInUse,
                                               [](const ScannedRegion&) -> Status { return {}; })
                                : Status{};
  return scanned || scanned.error().errno_value != ENOTTY;
}

// Stops all threads of the process. A thread that runs may start others, so the list is read until
// it has no new one.
Result<std::vector<StoppedThread>> stop_all_threads(pid_t pid) {
  std::vector<StoppedThread> stopped;
  const auto knows = [&](pid_t thread) {
    return std::any_of(stopped.begin(), stopped.end(),
                       [&](const StoppedThread& one) { return one.id() == thread; });
  };
  for (bool is_complete = false; !is_complete;) {
    is_complete = true;
    const auto threads = read_threads(pid);
    if (!threads) return failure(threads.error());
    for (const pid_t thread : *threads) {
      if (knows(thread)) continue;
      const auto stat = read_process_stat(thread);
      if (!stat || stat->is_dead() || stat->is_exiting) continue;
      auto one = StoppedThread::stop(thread);
      if (!one && one.error().errno_value == ESRCH) continue;
      if (!one) return failure(one.error());
      stopped.push_back(std::move(*one));
      is_complete = false;
    }
  }
  return stopped;
}

}  // namespace

Result<WriteTracker> WriteTracker::attach(const ProcessIdentity& process) {
  static const bool scans = kernel_has_scan();
  if (!scans) {
    static const bool has_soft_dirty = kernel_has_soft_dirty();
    if (has_soft_dirty) return WriteTracker(process.pid, {});
    return failure(
        EOPNOTSUPP,
        "the kernel does not track written memory (Linux 6.7 does, and older kernels with "
        "CONFIG_MEM_SOFT_DIRTY)");
  }
  auto events = create_in(process);
  if (!events) return failure(events.error());
  uffdio_api api{.api = UFFD_API, .features = kAsynchronous | kProtectsUnused, .ioctls = 0};
  if (ioctl(events->get(), UFFDIO_API, &api) != 0) {
    return failure(EOPNOTSUPP, "the kernel cannot write-protect memory with userfaultfd");
  }
  return WriteTracker(process.pid, std::move(*events));
}

Status WriteTracker::track(const AddressRange& span) const {
  uffdio_register request{
      .range = {span.start, span.bytes()}, .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
  if (ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0) return {};
  // Unmapped meanwhile, or memory that cannot be tracked: the scan shows which.
  if (errno == EINVAL || errno == EPERM) return {};
  // The address space is gone.
  if (errno == ENOMEM || errno == ESRCH) {
    return failure(ESRCH, fmt::format("process {} has ended, or executes another program", pid_));
  }
  return system_failure("track", fmt::format("the memory of process {}", pid_));
}

// A protecting scan that meets memory that is not tracked may have protected pages before it that
// it did not report. Then all pages count as written.
Status WriteTracker::take_written(PageTables& tables, const AddressRange& span,
                                  const std::function<Status(const AddressRange& written)>& visit) {
  ScanFor what = ScanFor::kWritten;
  std::vector<AddressRange> written;
  for (int attempt = 1;; ++attempt) {
    if (Status tracked = track(span); !tracked) return tracked;
    written.clear();
    const Status scanned = tables.scan(span, what, [&](const ScannedRegion& region) -> Status {
      written.push_back(region.span);
      return {};
    });
    if (scanned) break;
    if (scanned.error().errno_value != EPERM || attempt > kScansMax) return scanned;
    // Memory that cannot be tracked counts as written each time.
    what = attempt < kScansMax ? ScanFor::kInUseProtects : ScanFor::kInUse;
  }
  for (const AddressRange& region : written) {
    if (Status visited = visit(region); !visited) return visited;
  }
  return {};
}

Status WriteTracker::take_soft_dirty(const std::vector<AddressRange>& memory,
                                     std::vector<AddressRange>& written) {
  const auto stopped = stop_all_threads(pid_);
  if (!stopped) return failure(stopped.error());
  auto tables = PageTables::open(pid_);
  if (!tables) return failure(tables.error());
  for (const AddressRange& span : memory) {
    const Status listed = tables->list(span, [&](uint64_t address, PageEntry entry) -> Status {
      if (!entry.is_soft_dirty() && !is_first_) return {};
      if (written.empty() || written.back().end != address) written.push_back({address, address});
      written.back().end = address + kPageBytes;
      return {};
    });
    if (!listed) return listed;
  }
  is_first_ = false;
  return clear_soft_dirty(pid_);
}

Status WriteTracker::take_written(const std::vector<AddressRange>& memory,
                                  const std::function<Status(const AddressRange& written)>& visit) {
  if (!events_) {
    std::vector<AddressRange> written;
    if (Status taken = take_soft_dirty(memory, written); !taken) return taken;
    for (const AddressRange& range : written) {
      if (Status visited = visit(range); !visited) return visited;
    }
    return {};
  }
  auto tables = PageTables::open(pid_);
  if (!tables) return failure(tables.error());
  for (const AddressRange& span : memory) {
    if (Status taken = take_written(*tables, span, visit); !taken) return taken;
  }
  return {};
}

}  // namespace ppmr
