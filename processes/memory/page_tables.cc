#include "processes/memory/page_tables.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "processes/memory/lazy_mapping.h"
#include "processes/memory/page_index.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kEntriesPerRead = 64 << 10;
constexpr size_t kRegionsPerScan = 1024;
// A scan holds the lock of the address space. This many pages take it for less than a millisecond.
constexpr uint64_t kPagesPerScan = 64 << 10;

constexpr uint64_t kProtectMatching = 1U << 0;
constexpr uint64_t kFailIfUntracked = 1U << 1;

std::optional<AddressRange> private_anonymous(std::string_view line) {
  AddressRange range;
  if (!is_lazy_mapping({line.data(), line.size()}, range.start, range.end)) return std::nullopt;
  return range;
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
    // The lines of a mapping's properties begin with a capital letter.
    if (line.empty() || line.front() < 'A' || line.front() > 'Z') {
      const auto mapping = private_anonymous(line);
      start = mapping ? mapping->start : 0;
    }
    if (line.starts_with("VmFlags:") && line.find(" lo") != std::string_view::npos) {
      starts.insert(start);
    }
  });
  return starts;
}

}  // namespace

PageTables::PageTables(pid_t pid, UniqueFd file, WriteRecord record)
    : pid_(pid), file_(std::move(file)), record_(record), can_scan_(record == nullptr) {}

bool CleanFrames::has(uint64_t address, PageEntry entry, size_t& next) const {
  if (next >= pages_.size() || pages_[next].address != address) {
    const auto found =
        std::lower_bound(pages_.begin(), pages_.end(), address,
                         [](const Page& page, uint64_t at) { return page.address < at; });
    next = static_cast<size_t>(found - pages_.begin());
  }
  if (next == pages_.size() || pages_[next].address != address) return false;
  return pages_[next++].identity == entry.identity();
}

Result<PageTables> PageTables::open(pid_t pid, WriteRecord record) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  return PageTables(pid, std::move(file), record);
}

Status PageTables::scan(AddressRange range, ScanFor what, const Visit& visit) {
  regions_.resize(kRegionsPerScan);
  while (range.start < range.end) {
    PageScan scan{};
    scan.size = sizeof(scan);
    scan.start = range.start;
    scan.end = range.end;
    scan.regions = reinterpret_cast<uint64_t>(regions_.data());
    scan.regions_count = kRegionsPerScan;
    if (what != ScanFor::kInUse) {
      scan.flags = kProtectMatching | kFailIfUntracked;
      scan.pages_max = kPagesPerScan;
    }
    if (what == ScanFor::kInUse) scan.category_inverted = kPageIsZero;
    if (knows_guards_) scan.category_inverted |= kPageIsGuard;
    scan.category_mask = scan.category_inverted;
    if (what == ScanFor::kWritten) scan.category_mask |= kPageIsWritten;
    scan.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
    scan.return_mask = kPageIsWritten | kPageIsTracked;
    const int count = ioctl(file_.get(), kPageScan, &scan);
    if (count < 0 && errno == EINVAL && knows_guards_) {
      knows_guards_ = false;
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("scan the page tables of process", std::to_string(pid_));
    const auto found = static_cast<size_t>(count);
    uint64_t pages = 0;
    for (const ScannedPages& region : std::span(regions_).first(found)) {
      pages += (region.end - region.start) / kPageBytes;
      const bool is_unwritten =
          (region.categories & (kPageIsWritten | kPageIsTracked)) == kPageIsTracked;
      const Status visited = visit({{region.start, region.end}, is_unwritten});
      if (!visited) return visited;
    }
    // Does not use walk_end, because Linux 6.18 reports less than it has scanned.
    const bool has_more =
        found == kRegionsPerScan || (scan.pages_max > 0 && pages >= scan.pages_max);
    range.start = has_more ? regions_[found - 1].end : range.end;
  }
  return {};
}

Status PageTables::list(AddressRange range, const VisitEntry& visit) {
  // Uses its own buffer, because `visit` may call list(), too.
  std::vector<uint64_t> entries = std::move(entries_);
  entries.resize(std::max<uint64_t>(
      entries.size(), std::min<uint64_t>(kEntriesPerRead, range.bytes() / kPageBytes)));
  while (range.start < range.end) {
    const size_t count = std::min<uint64_t>(entries.size(), range.bytes() / kPageBytes);
    const auto wanted = static_cast<ssize_t>(count * sizeof(uint64_t));
    const auto at = static_cast<off_t>(range.start / kPageBytes * sizeof(uint64_t));
    const ssize_t got = pread(file_.get(), entries.data(), static_cast<size_t>(wanted), at);
    if (got < 0) return system_failure("read the page tables of process", std::to_string(pid_));
    if (got != wanted) {  // the process has ended, or executes another program
      return failure(ESRCH,
                     fmt::format("read the page tables of process {}: they have gone", pid_));
    }
    for (size_t i = 0; i < count; ++i) {
      const PageEntry entry(entries[i]);
      if (!entry.is_in_use() || entry.is_guard()) continue;
      if (Status visited = visit(range.start + i * kPageBytes, entry); !visited) return visited;
    }
    range.start += count * kPageBytes;
  }
  entries_ = std::move(entries);
  return {};
}

Status PageTables::find_pages_in_use(AddressRange range, const Visit& visit, CleanFrames* frames) {
  if (can_scan_) {
    const Status scanned = scan(range, ScanFor::kInUse, visit);
    if (scanned || scanned.error().errno_value != ENOTTY) return scanned;
    can_scan_ = false;  // an older kernel
  }
  return find_by_entries(range, visit, frames);
}

Status PageTables::find_by_entries(AddressRange range, const Visit& visit, CleanFrames* frames) {
  if (!zeros_) zeros_.emplace();
  ScannedRegion region;
  const Status listed = list(range, [&](uint64_t address, PageEntry entry) -> Status {
    if (zeros_->has(entry)) return {};
    if (frames != nullptr) frames->add(address, entry);
    const bool is_unwritten =
        record_ != nullptr && !entry.is_soft_dirty() && record_->has(address, entry, next_clean_);
    const uint64_t end = address + kPageBytes;
    if (region.range.end == address && region.is_unwritten == is_unwritten) {
      region.range.end = end;
      return {};
    }
    const ScannedRegion found = std::exchange(region, {{address, end}, is_unwritten});
    return found.range.bytes() == 0 ? Status{} : visit(found);
  });
  if (!listed || region.range.bytes() == 0) return listed;
  return visit(region);
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

namespace {

// No process can map memory from here on.
constexpr uint64_t kKernelBegins = uint64_t{1} << 63;

void append(std::vector<AddressRange>& memory, const AddressRange& mapping) {
  if (!memory.empty() && memory.back().end == mapping.start) {
    memory.back().end = mapping.end;
  } else {
    memory.push_back(mapping);
  }
}

}  // namespace

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
    if (mapping && !locked.contains(mapping->start)) append(memory, *mapping);
  });
  return memory;
}

Result<std::vector<AddressRange>> other_memory(pid_t pid) {
  const auto maps = read_process_file(pid, "maps");
  if (!maps) return failure(maps.error());
  std::vector<AddressRange> memory;
  for_each_line(*maps, [&](std::string_view line) {
    if (private_anonymous(line)) return;
    const auto parsed = parse_mappings(line);
    for (const Mapping& one : parsed) {
      if (one.address >= kKernelBegins) continue;  // [vsyscall]
      append(memory, {one.address, one.address + one.size_bytes});
    }
  });
  return memory;
}

}  // namespace ppmr
