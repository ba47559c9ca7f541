#include "processes/memory/frozen_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "base/unique_fd.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// The bits of /proc/PID/pagemap, see Documentation/admin-guide/mm/pagemap.rst of the kernel.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kExclusive = uint64_t{1} << 56;  // no other process maps the page
constexpr uint64_t kFrame = (uint64_t{1} << 55) - 1;
constexpr size_t kEntriesPerRead = 64 << 10;

// PAGEMAP_SCAN of include/uapi/linux/fs.h, since Linux 6.7. The headers of Debian 12 lack it.
struct ScannedRegion {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};
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
constexpr uint64_t kScanPresent = 1U << 3;
constexpr uint64_t kScanSwapped = 1U << 4;
constexpr size_t kRegionsPerScan = 1024;

struct Span {
  uint64_t start = 0;
  uint64_t end = 0;
};

Result<UniqueFd> open_pagemap(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  return file;
}

// Returns the frame of the zero page, which the kernel maps where a process has read memory that it
// never wrote; 0 if unknown.
uint64_t frame_of_zeros() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 0;
  (void)*static_cast<volatile char*>(page);
  uint64_t entry = 0;
  if (const auto pagemap = open_pagemap(getpid())) {
    const auto at = static_cast<off_t>(reinterpret_cast<uint64_t>(page) / kPageBytes * 8);
    if (pread(pagemap->get(), &entry, sizeof(entry), at) != sizeof(entry)) entry = 0;
  }
  munmap(page, kPageBytes);
  return entry & kFrame;
}

uint64_t read_hexadecimal(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

// Parses a line "7f00-7f01 rw-p 00000000 00:00 0    [heap]" of maps or smaps. Returns nullopt for a
// line of another kind.
std::optional<Span> private_anonymous(std::string_view line) {
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
  return Span{read_hexadecimal(range.substr(0, dash)), read_hexadecimal(range.substr(dash + 1))};
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

// Joins neighbouring mappings to one span: a scan costs more than a page, and a program that
// protects single pages has tens of thousands of mappings.
Result<std::vector<Span>> lazy_memory(pid_t pid, bool has_locked) {
  const auto maps = read_process_file(pid, "maps");
  if (!maps) return failure(maps.error());
  std::set<uint64_t> locked;
  if (has_locked) {
    auto starts = starts_of_locked(pid);
    if (!starts) return failure(starts.error());
    locked = std::move(*starts);
  }
  std::vector<Span> memory;
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

class Layout {
 public:
  // `shares`: several tasks may share pages.
  explicit Layout(bool shares)
      : zeros_(shares ? frame_of_zeros() : 0),
        shares_(shares),
        entries_(kEntriesPerRead),
        regions_(kRegionsPerScan) {}

  Status add(pid_t host_pid);
  PageIndex take() {
    index_.memory_bytes = next_;
    return std::move(index_);
  }

 private:
  // Adds those pages of `memory` that are in use.
  Status add_memory(const UniqueFd& pagemap, const Span& memory);
  // Does the same with the kernel's list that has an entry for each page.
  Status add_listed(const UniqueFd& pagemap, Span span);
  void add_pages(uint64_t start, uint64_t end, uint64_t offset);
  uint64_t place_of(uint64_t entry);

  const uint64_t zeros_;
  const bool shares_;
  std::vector<uint64_t> entries_;
  std::vector<ScannedRegion> regions_;
  bool can_scan_ = true;
  // The places of the pages that several processes map, by frame or by place in the swap space.
  std::unordered_map<uint64_t, uint64_t> places_;
  uint64_t next_ = 0;
  PageIndex index_;
};

Status Layout::add(pid_t host_pid) {
  const auto status = read_process_file(host_pid, "status");
  if (!status) return failure(status.error());
  const auto& pids = parse_process_status(*status).namespace_pids;
  if (pids.empty()) return failure(EPROTO, fmt::format("/proc/{}/status has no NSpid", host_pid));
  const bool has_locked = status->find("VmLck:\t       0 kB") == std::string::npos;
  const auto memory = lazy_memory(host_pid, has_locked);
  if (!memory) return failure(memory.error());
  const auto pagemap = open_pagemap(host_pid);
  if (!pagemap) return failure(pagemap.error());
  index_.tasks.push_back({pids.back(), host_pid, {}});
  for (const Span& span : *memory) {
    if (Status added = add_memory(*pagemap, span); !added) return added;
  }
  return {};
}

Status Layout::add_memory(const UniqueFd& pagemap, const Span& memory) {
  Span rest = memory;
  while (can_scan_ && rest.start < rest.end) {
    ScanRequest scan{};
    scan.size = sizeof(scan);
    scan.start = rest.start;
    scan.end = rest.end;
    scan.regions = reinterpret_cast<uint64_t>(regions_.data());
    scan.regions_count = regions_.size();
    scan.category_anyof_mask = kScanPresent | kScanSwapped;
    scan.return_mask = kScanPresent;
    const int count = ioctl(pagemap.get(), kScan, &scan);
    if (count < 0 && errno == ENOTTY) {
      // An older kernel: continue with the list, which also has entries for unused pages.
      can_scan_ = false;
      break;
    }
    if (count < 0) return system_failure("scan", "the page tables of a process");
    const auto found = static_cast<size_t>(count);
    for (const ScannedRegion& region : std::span(regions_).first(found)) {
      if (shares_) {
        if (Status added = add_listed(pagemap, {region.start, region.end}); !added) return added;
      } else {
        add_pages(region.start, region.end, next_);
        next_ += region.end - region.start;
      }
    }
    // Does not use walk_end, because Linux 6.18 reports less than it has scanned.
    rest.start = found < regions_.size() ? rest.end : regions_.back().end;
  }
  return add_listed(pagemap, rest);
}

Status Layout::add_listed(const UniqueFd& pagemap, Span span) {
  while (span.start < span.end) {
    const size_t count = std::min<uint64_t>(entries_.size(), (span.end - span.start) / kPageBytes);
    const auto wanted = static_cast<ssize_t>(count * sizeof(uint64_t));
    const auto at = static_cast<off_t>(span.start / kPageBytes * sizeof(uint64_t));
    if (pread(pagemap.get(), entries_.data(), static_cast<size_t>(wanted), at) != wanted) {
      return system_failure("read", "the page tables of a process");
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t entry = entries_[i];
      const uint64_t frame = entry & kFrame;
      if ((entry & (kPresent | kSwapped)) == 0) continue;
      if ((entry & kPresent) != 0 && frame == zeros_ && frame != 0) continue;
      const uint64_t start = span.start + i * kPageBytes;
      add_pages(start, start + kPageBytes, place_of(entry));
    }
    span.start += count * kPageBytes;
  }
  return {};
}

uint64_t Layout::place_of(uint64_t entry) {
  const auto next = [this] {
    next_ += kPageBytes;
    return next_ - kPageBytes;
  };
  const uint64_t frame = entry & kFrame;
  if (!shares_ || (entry & kExclusive) != 0 || frame == 0) return next();
  const auto known = places_.find(entry & (kFrame | kSwapped));
  if (known != places_.end()) return known->second;
  const uint64_t place = next();
  places_.emplace(entry & (kFrame | kSwapped), place);
  return place;
}

void Layout::add_pages(uint64_t start, uint64_t end, uint64_t offset) {
  std::vector<PageRange>& ranges = index_.tasks.back().ranges;
  if (!ranges.empty()) {
    PageRange& last = ranges.back();
    if (last.end == start && last.offset + last.bytes() == offset) {
      last.end = end;
      return;
    }
  }
  ranges.push_back({start, end, offset});
}

}  // namespace

Result<PageIndex> index_memory(const std::vector<ProcessIdentity>& tasks) {
  Layout layout(tasks.size() > 1);
  for (const ProcessIdentity& task : tasks) {
    if (Status added = layout.add(task.pid); !added) return failure(added.error());
  }
  return layout.take();
}

}  // namespace ppmr
