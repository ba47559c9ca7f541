#include "processes/memory/soft_dirty.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/number_file.h"
#include "processes/memory/page_index.h"
#include "processes/memory/stopped_process.h"

namespace ppmr {
namespace {

constexpr const char* kMergesPages = "/sys/kernel/mm/ksm/run";

// Returns the entry of a page that was just written. Its soft-dirty bit is set if the kernel has
// such bits.
Result<PageEntry> entry_of_written_page() {
  void* page =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return system_failure("test the soft-dirty bits: map", "a page");
  *static_cast<volatile char*>(page) = 1;
  const auto address = reinterpret_cast<uint64_t>(page);
  PageEntry found(0);
  Status listed;
  auto tables = PageTables::open(getpid());
  if (tables) {
    listed =
        tables->list({address, address + kPageBytes}, [&](uint64_t, PageEntry entry) -> Status {
          found = entry;
          return {};
        });
  }
  munmap(page, kPageBytes);
  if (!tables) return failure(tables.error());
  if (!listed) return failure(listed.error());
  return found;
}

}  // namespace

Status SoftDirty::check_kernel() {
  const auto written = entry_of_written_page();
  if (!written) return failure(written.error());
  if (!written->is_soft_dirty()) {
    return failure(EOPNOTSUPP,
                   "the kernel does not track written memory: use Linux 6.13 or later, or a "
                   "kernel with soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)");
  }
  if (written->frame() == 0) {
    return failure(EPERM,
                   "on this kernel only root (CAP_SYS_ADMIN) can track the memory of a process: "
                   "from Linux 6.13 on, each user can");
  }
  if (read_number(kMergesPages) == 1) {
    return failure(EOPNOTSUPP, fmt::format("the kernel merges equal pages ({} is 1), which hides "
                                           "writes on kernels before Linux 6.13",
                                           kMergesPages));
  }
  return {};
}

Result<std::unique_ptr<WriteTracker>> SoftDirty::attach(const ProcessIdentity& process) {
  if (Status possible = check_kernel(); !possible) return failure(possible.error());
  const std::string path = fmt::format("/proc/{}/clear_refs", process.pid);
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path, errno == ENOENT ? ESRCH : errno);
  if (!is_alive(process)) return failure(ESRCH, fmt::format("process {} has ended", process.pid));
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_failure("lock", path);
    return failure(EBUSY, fmt::format("another ppmr tracks what process {} writes", process.pid));
  }
  // Checks now that the process can be stopped, before all of its memory is sent.
  const Status stops = with_stopped_process(process.pid, [] { return Status{}; });
  if (!stops) return failure(stops.error());
  return std::unique_ptr<WriteTracker>(new SoftDirty(process.pid, std::move(file)));
}

// Clears the bits twice. While the kernel migrates a page, it clears the bit of the page but does
// not protect the page (clear_soft_dirty() of fs/proc/task_mmu.c). At the second time the migration
// is over, and a page that the kernel migrates only then was protected the first time. Fails with
// ESRCH if the process has ended.
Status SoftDirty::clear() const {
  constexpr char kSoftDirtyBits = '4';
  for (int time = 0; time < 2; ++time) {
    if (pwrite(file_.get(), &kSoftDirtyBits, 1, 0) == 1) continue;
    return system_failure("clear the soft-dirty bits of", fmt::format("process {}", pid_));
  }
  return {};
}

// If the process writes to a page after clear(), the next look reports the page again.
Status SoftDirty::take_all(const std::vector<AddressRange>& memory, const Visit& visit) {
  if (Status cleared = clear(); !cleared) return cleared;
  are_cleared_ = true;
  auto tables = PageTables::open(pid_, record());
  if (!tables) return failure(tables.error());
  CleanFrames frames;
  for (const AddressRange& range : memory) {
    const Status found = tables->find_pages_in_use(
        range, [&](const ScannedRegion& region) { return visit(region.range); }, &frames);
    if (!found) return found;
  }
  frames_ = std::move(frames);
  return {};
}

Status SoftDirty::take_written(const std::vector<AddressRange>& memory, const Visit& visit) {
  if (!are_cleared_) return take_all(memory, visit);
  std::vector<AddressRange> written;
  CleanFrames frames;
  frames.reserve_as(frames_);
  const Status taken = with_stopped_process(pid_, [&]() -> Status {
    auto tables = PageTables::open(pid_, record());
    if (!tables) return failure(tables.error());
    const auto add = [&](const ScannedRegion& region) -> Status {
      if (!region.is_unwritten) written.push_back(region.range);
      return {};
    };
    for (const AddressRange& range : memory) {
      if (Status found = tables->find_pages_in_use(range, add, &frames); !found) return found;
    }
    return clear();
  });
  if (!taken) return taken;
  frames_ = std::move(frames);
  for (const AddressRange& range : written) {
    if (Status visited = visit(range); !visited) return visited;
  }
  return {};
}

Status SoftDirty::count_as_written(const AddressRange&) const {
  return failure(EOPNOTSUPP, "soft-dirty bits cannot be set from outside");
}

}  // namespace ppmr
