#include "processes/memory/live_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

Result<pid_t> own_pid_of(pid_t host_pid) {
  const auto status = read_process_status(host_pid);
  if (!status) return failure(status.error());
  if (!status->namespace_pids.empty()) return status->namespace_pids.back();
  return failure(EPROTO, fmt::format("/proc/{}/status has no NSpid", host_pid));
}

void append(std::vector<PageRange>& ranges, const PageRange& range) {
  if (!ranges.empty()) {
    PageRange& last = ranges.back();
    if (last.end == range.start && last.offset + last.bytes() == range.offset) {
      last.end = range.end;
      return;
    }
  }
  ranges.push_back(range);
}

// Calls `visit(start, end, place)` for the parts of the range in the order of their addresses.
// `place` is empty where `places` (by address, not overlapping) have none.
template <typename Visit>
void for_each_part(const std::vector<PageRange>& places, AddressRange range, Visit visit) {
  auto next = std::upper_bound(places.begin(), places.end(), range.start,
                               [](uint64_t at, const PageRange& item) { return at < item.end; });
  while (range.start < range.end) {
    if (next == places.end()) return visit(range.start, range.end, std::optional<uint64_t>());
    const bool has_place = next->start <= range.start;
    const uint64_t stop = std::min(range.end, has_place ? next->end : next->start);
    visit(range.start, stop,
          has_place ? std::optional(next->offset + (range.start - next->start)) : std::nullopt);
    range.start = stop;
    if (has_place) ++next;
  }
}

}  // namespace

std::vector<PageRange> overlay(const std::vector<PageRange>& ranges,
                               const std::vector<PageRange>& newer) {
  std::vector<PageRange> merged;
  merged.reserve(ranges.size() + newer.size());
  auto next = newer.begin();
  for (const PageRange& range : ranges) {
    uint64_t at = range.start;
    while (at < range.end) {
      while (next != newer.end() && next->end <= at) append(merged, *next++);
      if (next == newer.end() || next->start >= range.end) {
        append(merged, {at, range.end, range.offset + (at - range.start)});
        break;
      }
      if (next->start > at) {
        append(merged, {at, next->start, range.offset + (at - range.start)});
      }
      at = std::min(next->end, range.end);
    }
  }
  for (; next != newer.end(); ++next) append(merged, *next);
  return merged;
}

std::string direct_writes(pid_t pid) {
  const auto descriptors = read_descriptors(pid);
  if (!descriptors) return "";
  for (const Descriptor& descriptor : *descriptors) {
    if (descriptor.target == "anon_inode:[io_uring]") return "it uses io_uring";
    if (descriptor.target.starts_with("/dev/infiniband/")) return "it uses RDMA";
    const auto info = read_process_file(pid, fmt::format("fdinfo/{}", descriptor.number));
    if (!info) continue;
    const size_t at = info->find("flags:");
    if (at == std::string::npos) continue;
    const unsigned long flags = std::strtoul(info->c_str() + at + 6, nullptr, 8);
    if ((flags & O_DIRECT) != 0 && (flags & O_ACCMODE) != O_WRONLY) {
      return fmt::format("it reads files with O_DIRECT (descriptor {})", descriptor.number);
    }
  }
  return "";
}

// ---- Rounds of a running process ----------------------------------------------------------------

Result<PageIndex> LiveMemory::next_round(pid_t process) {
  const auto tree = read_tree(process);
  if (!tree) return failure(tree.error());
  // Pages that several processes share need more than this: see the README.
  if (tree->size() > 1) return failure(EOPNOTSUPP, "it has child processes");
  if (const std::string why = direct_writes(process); !why.empty()) {
    return failure(EOPNOTSUPP, why);
  }
  const auto pid = own_pid_of(process);
  if (!pid) return failure(pid.error());
  const ProcessIdentity identity = tree->front().identity();
  if (!tracked_ || tracked_->process != identity) {
    auto tracker = WriteTracker::attach(identity);
    if (!tracker) return failure(tracker.error());
    tracked_.emplace(identity, std::move(*tracker), std::vector<PageRange>());
  }
  const auto memory = lazy_memory(process);
  if (!memory) return failure(memory.error());
  PageIndex round{0, {{*pid, process, {}, identity.start_time}}};
  std::vector<PageRange>& ranges = round.tasks.front().ranges;
  const Status taken =
      tracked_->tracker.take_written(*memory, [&](const AddressRange& written) -> Status {
        append(ranges, {written.start, written.end, round.memory_bytes});
        round.memory_bytes += written.bytes();
        return {};
      });
  if (taken) {
    std::vector<PageRange> placed = ranges;
    for (PageRange& range : placed) range.offset += sent_bytes_;
    tracked_->places = overlay(tracked_->places, placed);
  } else if (taken.error().errno_value == ESRCH) {
    forget();  // the process executes another program; the next round begins anew
  } else {
    return failure(taken.error());
  }
  sent_bytes_ += round.memory_bytes;
  return round;
}

uint64_t LiveMemory::count_written_bytes() const {
  if (!tracked_) return 0;
  const auto memory = lazy_memory(tracked_->process.pid);
  auto tables = PageTables::open(tracked_->process.pid);
  if (!memory || !tables) return 0;
  uint64_t bytes = 0;
  for (const AddressRange& range : *memory) {
    (void)tables->scan(range, ScanFor::kInUse, [&](const ScannedRegion& region) -> Status {
      if (!region.is_unwritten) bytes += region.range.bytes();
      return {};
    });
  }
  return bytes;
}

// ---- The frozen tree ----------------------------------------------------------------------------

namespace {

// Gives every page of the frozen tree its place.
class Layout {
 public:
  // `places`: of the pages that were sent and not written since, by address, if the tree is one
  // process. `shares`: several tasks may share pages.
  Layout(uint64_t sent_bytes, const std::vector<PageRange>& places, bool shares)
      : zeros_(shares ? frame_of_zeros() : 0), places_(places), shares_(shares) {
    index_.sent_bytes = sent_bytes;
  }

  Status add(const ProcessIdentity& process);
  FrozenMemoryIndex take() {
    index_.all.memory_bytes = index_.sent_bytes + index_.unsent.memory_bytes;
    return std::move(index_);
  }

 private:
  Status add_region(PageTables& tables, const ScannedRegion& region);
  void add_page(uint64_t address, PageEntry entry);
  void add_unsent(uint64_t start, uint64_t end, uint64_t place) {
    append(index_.unsent.tasks.back().ranges, {start, end, place});
    append(index_.all.tasks.back().ranges, {start, end, index_.sent_bytes + place});
  }
  uint64_t next_place(uint64_t bytes) {
    return std::exchange(index_.unsent.memory_bytes, index_.unsent.memory_bytes + bytes);
  }

  const uint64_t zeros_;
  const std::vector<PageRange>& places_;
  const bool shares_;
  FrozenMemoryIndex index_;
  // The places of the pages that several processes map, by frame or by place in the swap space.
  std::unordered_map<uint64_t, uint64_t> shared_;
};

Status Layout::add(const ProcessIdentity& process) {
  const auto pid = own_pid_of(process.pid);
  if (!pid) return failure(pid.error());
  const auto memory = lazy_memory(process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(process.pid);
  if (!tables) return failure(tables.error());
  index_.all.tasks.push_back({*pid, process.pid, {}, process.start_time});
  index_.unsent.tasks.push_back(index_.all.tasks.back());
  for (const AddressRange& range : *memory) {
    const Status added = tables->find_pages_in_use(
        range, [&](const ScannedRegion& region) { return add_region(*tables, region); });
    if (!added) return added;
  }
  return {};
}

Status Layout::add_region(PageTables& tables, const ScannedRegion& region) {
  if (shares_) {
    return tables.list(region.range, [&](uint64_t address, PageEntry entry) -> Status {
      add_page(address, entry);
      return {};
    });
  }
  static const std::vector<PageRange> kNone;
  for_each_part(region.is_unwritten ? places_ : kNone, region.range,
                [&](uint64_t start, uint64_t end, std::optional<uint64_t> place) {
                  if (place) {
                    append(index_.all.tasks.back().ranges, {start, end, *place});
                  } else {
                    add_unsent(start, end, next_place(end - start));
                  }
                });
  return {};
}

void Layout::add_page(uint64_t address, PageEntry entry) {
  const uint64_t end = address + kPageBytes;
  if (entry.is_present() && entry.frame() == zeros_ && zeros_ != 0) return;
  if (entry.is_exclusive() || entry.frame() == 0) {
    return add_unsent(address, end, next_place(kPageBytes));
  }
  const auto [known, is_new] = shared_.try_emplace(entry.identity(), 0);
  if (is_new) known->second = next_place(kPageBytes);
  add_unsent(address, end, known->second);
}

}  // namespace

// The rounds were of one process. It may have changed after the last one.
std::string LiveMemory::why_discarded(const std::vector<ProcessIdentity>& tasks) const {
  if (!tracked_) return "";
  if (tasks.size() > 1) return "it has started child processes";
  return direct_writes(tracked_->process.pid);
}

Result<FrozenMemoryIndex> LiveMemory::index_frozen(
    const std::vector<ProcessIdentity>& tasks) const {
  const std::string discarded = why_discarded(tasks);
  const bool is_known = tracked_ && discarded.empty() && tasks.front() == tracked_->process;
  static const std::vector<PageRange> kNone;
  Layout layout(sent_bytes_, is_known ? tracked_->places : kNone, tasks.size() > 1);
  for (const ProcessIdentity& process : tasks) {
    if (Status added = layout.add(process); !added) return failure(added.error());
  }
  auto index = layout.take();
  index.discarded = discarded;
  return index;
}

}  // namespace ppmr
