#include "processes/memory/page_tables.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <span>

#include "processes/memory/page_index.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kEntriesPerRead = 64 << 10;
constexpr size_t kRegionsPerScan = 1024;
// A scan holds the lock of the address space. This many pages take it for less than a millisecond.
constexpr uint64_t kPagesPerScan = 64 << 10;

// PAGEMAP_SCAN of include/uapi/linux/fs.h. The headers of Debian 12 lack it.
struct ScanRequest {
  uint64_t size;
  uint64_t flags;
  uint64_t start;
  uint64_t end;
  uint64_t walk_end;
  uint64_t regions;
  uint64_t regions_count;
  uint64_t pages_max;
  uint64_t category_inverted;
  uint64_t category_mask;
  uint64_t category_anyof_mask;
  uint64_t return_mask;
};
constexpr unsigned long kScan = _IOWR('f', 16, ScanRequest);
constexpr uint64_t kProtectMatching = 1U << 0;
constexpr uint64_t kFailIfUntracked = 1U << 1;
constexpr uint64_t kIsTracked = 1U << 0;
constexpr uint64_t kIsWritten = 1U << 1;
constexpr uint64_t kIsPresent = 1U << 3;
constexpr uint64_t kIsSwapped = 1U << 4;
constexpr uint64_t kIsGuard = 1U << 8;  // since Linux 6.15

uint64_t read_hexadecimal(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

// Parses a line "7f00-7f01 rw-p 00000000 00:00 0    [heap]" of maps or smaps. Returns nullopt for a
// line of another kind.
std::optional<AddressRange> private_anonymous(std::string_view line) {
  std::array<std::string_view, 5> fields;
  for (std::string_view& field : fields) {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const size_t end = std::min(line.find(' '), line.size());
    field = line.substr(0, end);
    line.remove_prefix(end);
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const auto& [range, flags, offset, device, inode] = fields;
  const size_t dash = range.find('-');
  if (dash == std::string_view::npos || flags.size() != 4 || flags[3] != 'p') return std::nullopt;
  if (inode != "0" || line.starts_with('/') || line.starts_with("[v")) return std::nullopt;
  return AddressRange{read_hexadecimal(range.substr(0, dash)),
                      read_hexadecimal(range.substr(dash + 1))};
}

template <typename Take>
void for_each_line(std::string_view text, Take take) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

Result<std::set<uint64_t>> starts_of_locked(pid_t pid) {
  const auto smaps = read_process_file(pid, "smaps");
  if (!smaps) return failure(smaps.error());
  std::set<uint64_t> starts;
  uint64_t start = 0;
  for_each_line(*smaps, [&](std::string_view line) {
    if (const auto mapping = private_anonymous(line)) start = mapping->start;
    if (line.starts_with("VmFlags:") && line.find(" lo") != std::string_view::npos) {
      starts.insert(start);
    }
  });
  return starts;
}

}  // namespace

struct PageTables::Region {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};

PageTables::PageTables(UniqueFd file) : file_(std::move(file)) {}

Result<PageTables> PageTables::open(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  return PageTables(std::move(file));
}

Status PageTables::scan(AddressRange range, ScanFor what, const Visit& visit) {
  static_assert(sizeof(Region) == 3 * sizeof(uint64_t));
  regions_.resize(3 * kRegionsPerScan);
  auto* const regions = reinterpret_cast<Region*>(regions_.data());
  while (range.start < range.end) {
    ScanRequest scan{};
    scan.size = sizeof(scan);
    scan.start = range.start;
    scan.end = range.end;
    scan.regions = reinterpret_cast<uint64_t>(regions);
    scan.regions_count = kRegionsPerScan;
    if (what != ScanFor::kInUse) {
      scan.flags = kProtectMatching | kFailIfUntracked;
      scan.pages_max = kPagesPerScan;
    }
    if (knows_guards_) scan.category_inverted = scan.category_mask = kIsGuard;
    if (what == ScanFor::kWritten) scan.category_mask |= kIsWritten;
    scan.category_anyof_mask = kIsPresent | kIsSwapped;
    scan.return_mask = kIsWritten | kIsTracked;
    const int count = ioctl(file_.get(), kScan, &scan);
    if (count < 0 && errno == EINVAL && knows_guards_) {
      knows_guards_ = false;
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("scan", "the page tables of a process");
    const auto found = static_cast<size_t>(count);
    uint64_t pages = 0;
    for (const Region& region : std::span(regions, found)) {
      pages += (region.end - region.start) / kPageBytes;
      const bool is_unwritten = (region.categories & (kIsWritten | kIsTracked)) == kIsTracked;
      const Status visited = visit({{region.start, region.end}, is_unwritten});
      if (!visited) return visited;
    }
    // Does not use walk_end, because Linux 6.18 reports less than it has scanned.
    const bool has_more =
        found == kRegionsPerScan || (scan.pages_max > 0 && pages >= scan.pages_max);
    range.start = has_more ? regions[found - 1].end : range.end;
  }
  return {};
}

Status PageTables::list(AddressRange range, const VisitEntry& visit) {
  entries_.resize(kEntriesPerRead);
  while (range.start < range.end) {
    const size_t count = std::min<uint64_t>(entries_.size(), range.bytes() / kPageBytes);
    const auto wanted = static_cast<ssize_t>(count * sizeof(uint64_t));
    const auto at = static_cast<off_t>(range.start / kPageBytes * sizeof(uint64_t));
    const ssize_t got = pread(file_.get(), entries_.data(), static_cast<size_t>(wanted), at);
    if (got < 0) return system_failure("read", "the page tables of a process");
    if (got != wanted) {  // it has ended, or executes another program
      return failure(ESRCH, "read the page tables of a process: they have gone");
    }
    for (size_t i = 0; i < count; ++i) {
      const PageEntry entry(entries_[i]);
      if (!entry.is_in_use() || entry.is_guard()) continue;
      if (Status visited = visit(range.start + i * kPageBytes, entry); !visited) return visited;
    }
    range.start += count * kPageBytes;
  }
  return {};
}

Status PageTables::find_pages_in_use(AddressRange range, const Visit& visit) {
  if (can_scan_) {
    const Status scanned = scan(range, ScanFor::kInUse, visit);
    if (scanned || scanned.error().errno_value != ENOTTY) return scanned;
    can_scan_ = false;  // an older kernel
  }
  return list(range, [&](uint64_t address, PageEntry) {
    return visit({{address, address + kPageBytes}, false});
  });
}

uint64_t frame_of_zeros() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 0;
  (void)*static_cast<volatile char*>(page);
  uint64_t frame = 0;
  if (auto tables = PageTables::open(getpid())) {
    const auto address = reinterpret_cast<uint64_t>(page);
    (void)tables->list({address, address + kPageBytes}, [&](uint64_t, PageEntry entry) -> Status {
      frame = entry.frame();
      return {};
    });
  }
  munmap(page, kPageBytes);
  return frame;
}

Result<std::vector<AddressRange>> lazy_memory(pid_t pid) {
  const auto status = read_process_file(pid, "status");
  if (!status) return failure(status.error());
  const auto maps = read_process_file(pid, "maps");
  if (!maps) return failure(maps.error());
  std::set<uint64_t> locked;
  if (status->find("VmLck:\t       0 kB") == std::string::npos) {
    auto starts = starts_of_locked(pid);
    if (!starts) return failure(starts.error());
    locked = std::move(*starts);
  }
  std::vector<AddressRange> memory;
  for_each_line(*maps, [&](std::string_view line) {
    const auto mapping = private_anonymous(line);
    if (!mapping || locked.contains(mapping->start)) return;
    if (!memory.empty() && memory.back().end == mapping->start) {
      memory.back().end = mapping->end;
    } else {
      memory.push_back(*mapping);
    }
  });
  return memory;
}

}  // namespace ppmr
