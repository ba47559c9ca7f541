#include "processes/memory/live_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
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
// `place` is empty where `places` (sorted by address, not overlapping) have none.
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
  std::erase_if(merged, [](const PageRange& range) { return range.offset == kNoPlace; });
  return merged;
}

std::vector<PageRange> within(const std::vector<PageRange>& ranges,
                              const std::vector<AddressRange>& memory) {
  std::vector<PageRange> kept;
  for (const AddressRange& part : memory) {
    for_each_part(ranges, part, [&](uint64_t start, uint64_t end, std::optional<uint64_t> place) {
      if (place) append(kept, {start, end, *place});
    });
  }
  return kept;
}

std::string direct_writes(pid_t pid, bool expects_release) {
  const auto descriptors = read_descriptors(pid);
  if (!descriptors) return "";
  for (const Descriptor& descriptor : *descriptors) {
    if (descriptor.target == "anon_inode:[io_uring]") return "it uses io_uring";
    if (descriptor.target.starts_with("/dev/infiniband/")) {
      if (expects_release) continue;
      return "it uses RDMA";
    }
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

// ---- Rounds of a running tree -------------------------------------------------------------------

namespace {

std::string why_uncertain(pid_t pid, bool expects_release = false) {
  const std::string why = direct_writes(pid, expects_release);
  return why.empty() ? "" : fmt::format("process {}: {}", pid, why);
}

bool is_shared(PageEntry entry) { return !entry.is_exclusive() && entry.frame() != 0; }

// Between vfork(2) and execve(2) a process has the memory of its parent.
bool has_memory_of(pid_t pid, pid_t other) {
  return syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0) == 0;
}

// Adds the pages that a process shares and has not written since a round has sent them.
void note_shared(pid_t pid, WriteRecord record, const std::vector<PageRange>& places,
                 std::unordered_map<uint64_t, uint64_t>& known) {
  const auto memory = lazy_memory(pid);
  auto tables = PageTables::open(pid, record);
  if (!memory || !tables) return;
  const auto note = [&](uint64_t start, uint64_t end, std::optional<uint64_t> place) {
    if (!place) return;
    (void)tables->list({start, end}, [&](uint64_t, PageEntry entry) -> Status {
      if (is_shared(entry)) known.emplace(entry.identity(), kNoPlace);
      return {};
    });
  };
  for (const AddressRange& range : *memory) {
    (void)tables->find_pages_in_use(range, [&](const ScannedRegion& region) -> Status {
      if (region.is_unwritten) for_each_part(places, region.range, note);
      return {};
    });
  }
}

}  // namespace

Status LiveMemory::check_certain(const std::vector<ProcessStat>& tree) const {
  for (const ProcessStat& process : tree) {
    const std::string why = why_uncertain(process.pid, expected_.contains(process.pid));
    if (!why.empty()) return failure(EOPNOTSUPP, why);
  }
  return {};
}

Result<LiveMemory::Tracked> LiveMemory::take_tracked(const ProcessIdentity& process) {
  auto known = tracked_.extract(process.pid);
  if (known && known.mapped().process == process) return std::move(known.mapped());
  auto tracker = attach_(process);
  if (!tracker) return failure(tracker.error());
  return Tracked{process, std::move(*tracker), {}};
}

Result<PageIndex> LiveMemory::next_round(pid_t root) {
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  if (Status certain = check_certain(*tree); !certain) return failure(certain.error());
  // A tree that is protected for days starts and ends many processes.
  std::set<pid_t> living;
  for (const ProcessStat& process : *tree) living.insert(process.pid);
  std::erase_if(tracked_, [&](const auto& known) { return !living.contains(known.first); });
  Round round;
  round.shares = tree->size() > 1;
  if (round.shares) {
    for (const auto& [pid, tracked] : tracked_) {
      note_shared(pid, tracked.tracker->record(), tracked.places, round.shared);
    }
  }
  for (const ProcessStat& process : *tree) {
    const bool is_vfork = process.pid != root && has_memory_of(process.pid, process.parent);
    const Status added = is_vfork ? Status{} : add_process(process.identity(), round);
    if (added) continue;
    // If the process has ended, or executes another program, its pages are new in the next round. A
    // process that ends meanwhile cannot be traced either, and leaves other errors.
    if (added.error().errno_value != ESRCH && is_alive(process.identity())) {
      return failure(added.error());
    }
  }
  // Checks again, because a direct read may have begun after the first check. It may still write to
  // pages that the round has protected.
  if (Status certain = check_certain(*tree); !certain) return failure(certain.error());
  sent_bytes_ += round.index.memory_bytes;
  return std::move(round.index);
}

// After an error, the pages that the round already has of the process stay in the round, because
// later pages have their places behind them. After an error or an exception, the tracker may count
// pages as unwritten that no round has. So this function removes the process from `tracked_`, and
// adds it again only on success.
Status LiveMemory::add_process(const ProcessIdentity& process, Round& round) {
  auto tracked = take_tracked(process);
  if (!tracked) return failure(tracked.error());
  const auto pid = own_pid_of(process.pid);
  if (!pid) return failure(pid.error());
  const auto memory = lazy_memory(process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(process.pid);
  if (!tables) return failure(tables.error());
  round.index.tasks.push_back({*pid, process.pid, {}, process.start_time});
  std::vector<PageRange>& ranges = round.index.tasks.back().ranges;
  std::vector<PageRange> outdated;
  std::vector<PageRange> placed;
  const auto add = [&](uint64_t start, uint64_t end) {
    const uint64_t place =
        std::exchange(round.index.memory_bytes, round.index.memory_bytes + (end - start));
    append(ranges, {start, end, place});
    append(placed, {start, end, sent_bytes_ + place});
    return place;
  };
  const auto add_page = [&](uint64_t address, PageEntry entry) -> Status {
    const uint64_t end = address + kPageBytes;
    if (!is_shared(entry)) return add(address, end), Status{};
    const auto [known, is_new] = round.shared.try_emplace(entry.identity(), kNoPlace);
    if (is_new) {
      known->second = add(address, end);
    } else if (known->second != kNoPlace) {
      append(ranges, {address, end, known->second});
    }
    return {};
  };
  const auto add_region = [&](const AddressRange& written) -> Status {
    outdated.push_back({written.start, written.end, kNoPlace});
    if (round.shares) return tables->list(written, add_page);
    return add(written.start, written.end), Status{};
  };
  if (Status taken = tracked->tracker->take_written(*memory, add_region); !taken) return taken;
  // A page that another process has sent has no place in this list. A page without a mapping has
  // none, either: the tracker would not notice that a mapping there is new at the next look.
  std::vector<PageRange>& places = tracked->places;
  places = overlay(overlay(within(places, *memory), outdated), placed);
  tracked_.insert_or_assign(process.pid, std::move(*tracked));
  return {};
}

void LiveMemory::take_back(uint64_t kept_bytes) {
  for (auto next = tracked_.begin(); next != tracked_.end();) {
    Tracked& tracked = next->second;
    std::vector<PageRange> lost;
    bool are_counted = true;
    for (const PageRange& range : tracked.places) {
      if (range.offset + range.bytes() <= kept_bytes) continue;
      const uint64_t kept = kept_bytes > range.offset ? kept_bytes - range.offset : 0;
      lost.push_back({range.start + kept, range.end, kNoPlace});
      are_counted = are_counted &&
                    tracked.tracker->count_as_written({range.start + kept, range.end}).has_value();
    }
    tracked.places = overlay(tracked.places, lost);
    // If the tracking of a process has ended, the next round sends all of its memory.
    next = are_counted ? std::next(next) : tracked_.erase(next);
  }
  sent_bytes_ = kept_bytes;
}

uint64_t LiveMemory::count_written_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [pid, tracked] : tracked_) {
    const auto memory = lazy_memory(pid);
    auto tables = PageTables::open(pid, tracked.tracker->record());
    if (!memory || !tables) continue;
    for (const AddressRange& range : *memory) {
      (void)tables->find_pages_in_use(range, [&](const ScannedRegion& region) -> Status {
        if (!region.is_unwritten) bytes += region.range.bytes();
        return {};
      });
    }
  }
  return bytes;
}

// ---- The frozen tree ----------------------------------------------------------------------------

namespace {

// How often the kernel may move shared pages of a frozen tree before the move fails.
constexpr int kListingsMax = 4;

// A checksum over the frames of pages. The order of the pages counts.
class FrameSum {
 public:
  void add(uint64_t address, PageEntry entry) { mix(address), mix(entry.identity()); }
  bool operator==(const FrameSum&) const = default;

 private:
  void mix(uint64_t value) { sum_ = (sum_ ^ value) * 0x9e3779b97f4a7c15ULL, sum_ ^= sum_ >> 29; }
  uint64_t sum_ = 0;
};

// Gives every page of the frozen tree its place.
class Layout {
 public:
  // `shares`: several tasks may share pages.
  Layout(uint64_t sent_bytes, bool shares)
      : zeros_(shares ? frame_of_zeros() : 0), shares_(shares) {
    index_.sent_bytes = sent_bytes;
  }

  // `places`: the places of sent pages. Only the places of pages count that were not written since.
  Status add(const ProcessIdentity& process, WriteRecord record,
             const std::vector<PageRange>& places);
  // Returns whether all shared pages are still in the frames in which add() found them. If not, two
  // pages that were found in one frame may be different pages: the kernel may have moved one page
  // out of the frame before it moved the other one in.
  Result<bool> is_still_true() const;
  FrozenMemoryIndex take() {
    index_.all.memory_bytes = index_.sent_bytes + index_.unsent.memory_bytes;
    return std::move(index_);
  }

 private:
  struct Listed {
    pid_t host_pid;
    std::vector<AddressRange> memory;
  };

  // `place`: nullopt if there is no copy.
  Status add_part(PageTables& tables, AddressRange range, std::optional<uint64_t> place);
  bool counts_as_shared(PageEntry entry) const;
  void add_page(uint64_t address, PageEntry entry, std::optional<uint64_t> place);
  void add_placed(uint64_t start, uint64_t end, uint64_t place) {
    append(index_.all.tasks.back().ranges, {start, end, place});
    if (place < index_.sent_bytes) return;
    append(index_.unsent.tasks.back().ranges, {start, end, place - index_.sent_bytes});
  }
  // Returns a place behind those of the rounds.
  uint64_t new_place(uint64_t bytes) {
    index_.unsent.memory_bytes += bytes;
    return index_.sent_bytes + index_.unsent.memory_bytes - bytes;
  }

  const uint64_t zeros_;
  const bool shares_;
  FrozenMemoryIndex index_;
  // The places of the pages that several processes map, by PageEntry::identity().
  std::unordered_map<uint64_t, uint64_t> shared_;
  std::vector<Listed> listed_;
  FrameSum frames_;  // checksum of the shared pages
};

Status Layout::add(const ProcessIdentity& process, WriteRecord record,
                   const std::vector<PageRange>& places) {
  const auto pid = own_pid_of(process.pid);
  if (!pid) return failure(pid.error());
  const auto memory = lazy_memory(process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(process.pid, record);
  if (!tables) return failure(tables.error());
  index_.all.tasks.push_back({*pid, process.pid, {}, process.start_time});
  index_.unsent.tasks.push_back(index_.all.tasks.back());
  static const std::vector<PageRange> kNone;
  for (const AddressRange& range : *memory) {
    const Status added =
        tables->find_pages_in_use(range, [&](const ScannedRegion& region) -> Status {
          Status parts;
          for_each_part(region.is_unwritten ? places : kNone, region.range,
                        [&](uint64_t start, uint64_t end, std::optional<uint64_t> place) {
                          if (parts) parts = add_part(*tables, {start, end}, place);
                        });
          return parts;
        });
    if (!added) return added;
  }
  if (shares_) listed_.push_back({process.pid, std::move(*memory)});
  return {};
}

bool Layout::counts_as_shared(PageEntry entry) const {
  const bool is_zeros = entry.is_present() && entry.frame() == zeros_ && zeros_ != 0;
  return is_shared(entry) && !is_zeros;
}

Result<bool> Layout::is_still_true() const {
  FrameSum frames;
  for (const Listed& listed : listed_) {
    auto tables = PageTables::open(listed.host_pid);
    if (!tables) return failure(tables.error());
    const auto add = [&](uint64_t address, PageEntry entry) -> Status {
      if (counts_as_shared(entry)) frames.add(address, entry);
      return {};
    };
    for (const AddressRange& range : listed.memory) {
      const Status found = tables->find_pages_in_use(
          range, [&](const ScannedRegion& region) { return tables->list(region.range, add); });
      if (!found) return failure(found.error());
    }
  }
  return frames == frames_;
}

Status Layout::add_part(PageTables& tables, AddressRange range, std::optional<uint64_t> place) {
  if (!shares_) {
    add_placed(range.start, range.end, place ? *place : new_place(range.bytes()));
    return {};
  }
  return tables.list(range, [&](uint64_t address, PageEntry entry) -> Status {
    add_page(address, entry,
             place ? std::optional(*place + (address - range.start)) : std::nullopt);
    return {};
  });
}

void Layout::add_page(uint64_t address, PageEntry entry, std::optional<uint64_t> place) {
  if (entry.is_present() && entry.frame() == zeros_ && zeros_ != 0) return;
  if (!is_shared(entry)) {
    return add_placed(address, address + kPageBytes, place ? *place : new_place(kPageBytes));
  }
  frames_.add(address, entry);
  // The first process decides the place for all.
  const auto [known, is_new] = shared_.try_emplace(entry.identity(), 0);
  if (is_new) known->second = place ? *place : new_place(kPageBytes);
  add_placed(address, address + kPageBytes, known->second);
}

}  // namespace

Result<FrozenMemoryIndex> LiveMemory::index_frozen(
    const std::vector<ProcessIdentity>& tasks) const {
  std::string discarded;
  if (!tracked_.empty()) {  // the tracker has missed direct writes since the last round
    for (const ProcessIdentity& process : tasks) {
      if (discarded.empty()) discarded = why_uncertain(process.pid);
    }
  }
  static const std::vector<PageRange> kNone;
  for (int listing = 0; listing < kListingsMax; ++listing) {
    Layout layout(sent_bytes_, tasks.size() > 1);
    for (const ProcessIdentity& process : tasks) {
      const auto known = tracked_.find(process.pid);
      const bool is_known =
          discarded.empty() && known != tracked_.end() && known->second.process == process;
      const Status added =
          is_known ? layout.add(process, known->second.tracker->record(), known->second.places)
                   : layout.add(process, nullptr, kNone);
      if (!added) return failure(added.error());
    }
    const auto is_true = layout.is_still_true();
    if (!is_true) return failure(is_true.error());
    if (!*is_true) continue;
    auto index = layout.take();
    index.discarded = discarded;
    return index;
  }
  return failure(EAGAIN, "list the pages that the processes share: the kernel keeps moving them");
}

}  // namespace ppmr
