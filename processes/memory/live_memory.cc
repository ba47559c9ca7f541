#include "processes/memory/live_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

bool share_memory(pid_t one, pid_t other) {
  return syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0;
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

// Calls `visit(start, end, place)` for the parts of `span` in the order of their addresses; `place`
// is null where `ranges` have none.
template <typename Visit>
Status for_each_part(const std::vector<PageRange>& ranges, AddressRange span, Visit visit) {
  auto range = std::upper_bound(ranges.begin(), ranges.end(), span.start,
                                [](uint64_t at, const PageRange& item) { return at < item.end; });
  while (span.start < span.end) {
    const bool inside = range != ranges.end() && range->start <= span.start;
    const uint64_t stop =
        range == ranges.end() ? span.end : std::min(span.end, inside ? range->end : range->start);
    const uint64_t place = inside ? range->offset + (span.start - range->start) : 0;
    if (Status visited = visit(span.start, stop, inside ? &place : nullptr); !visited) {
      return visited;
    }
    span.start = stop;
    if (inside) ++range;
  }
  return {};
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

// ---- Rounds of a running tree -------------------------------------------------------------------

Result<LiveMemory::Task*> LiveMemory::track(const ProcessIdentity& process) {
  const auto known = tasks_.find(process.pid);
  if (known != tasks_.end() && known->second.process == process) return &known->second;
  auto tracker = WriteTracker::attach(process);
  if (!tracker) return failure(tracker.error());
  Task task{process, std::make_unique<WriteTracker>(std::move(*tracker)), {}};
  return &(tasks_[process.pid] = std::move(task));
}

Status LiveMemory::visit_shared_sent(const Task& task, const VisitSent& visit) {
  if (task.places.empty()) return {};
  const auto memory = lazy_memory(task.process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(task.process.pid);
  if (!tables) return failure(tables.error());
  const auto visit_part = [&](uint64_t start, uint64_t end, const uint64_t* place) -> Status {
    if (place == nullptr) return {};
    return tables->list({start, end}, [&](uint64_t at, PageEntry entry) -> Status {
      if (!entry.is_exclusive() && entry.frame() != 0) visit(entry, *place + (at - start));
      return {};
    });
  };
  for (const AddressRange& span : *memory) {
    const Status visited =
        tables->find_pages_in_use(span, [&](const ScannedRegion& region) -> Status {
          if (!region.is_unwritten) return {};
          return for_each_part(task.places, region.span, visit_part);
        });
    if (!visited) return visited;
  }
  return {};
}

Status LiveMemory::take_written(Task& task, Frames* frames, IndexedTask& round,
                                uint64_t& round_bytes) {
  const auto memory = lazy_memory(task.process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(task.process.pid);
  if (!tables) return failure(tables.error());
  const auto add = [&](uint64_t start, uint64_t end) {
    append(round.ranges, {start, end, round_bytes});
    round_bytes += end - start;
  };
  return task.tracker->take_written(*memory, [&](const AddressRange& written) -> Status {
    if (frames == nullptr) return add(written.start, written.end), Status{};
    return tables->list(written, [&](uint64_t address, PageEntry entry) -> Status {
      const bool is_shared = !entry.is_exclusive() && entry.frame() != 0;
      if (is_shared && !frames->insert(entry.identity()).second) return {};
      return add(address, address + kPageBytes), Status{};
    });
  });
}

Result<PageIndex> LiveMemory::next_round(pid_t root) {
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  PageIndex round;
  Frames frames;
  const bool may_share = tree->size() > 1;
  // A new process shares pages with its parent.
  if (may_share) {
    for (const auto& [pid, task] : tasks_) {
      (void)visit_shared_sent(task,
                              [&](PageEntry entry, uint64_t) { frames.insert(entry.identity()); });
    }
  }
  for (const ProcessStat& process : *tree) {
    // A child of vfork(2): its memory is its parent's until it executes a program.
    if (process.pid != root && share_memory(process.pid, process.parent)) continue;
    if (const std::string why = direct_writes(process.pid); !why.empty()) {
      return failure(EOPNOTSUPP, fmt::format("process {}: {}", process.pid, why));
    }
    const auto pid = own_pid_of(process.pid);
    auto task = pid ? track(process.identity()) : failure(pid.error());
    IndexedTask entry;
    Status taken = task ? Status{} : failure(task.error());
    if (taken) {
      entry = {*pid, process.pid, {}, process.start_time_ticks};
      taken = take_written(**task, may_share ? &frames : nullptr, entry, round.memory_bytes);
    }
    if (!taken && taken.error().errno_value == ESRCH) {
      // It has ended, or has a new address space: the next round or the frozen tree has the rest.
      // What this round has found of it stays in the round, because the places are given.
      tasks_.erase(process.pid);
      if (!entry.ranges.empty()) round.tasks.push_back(std::move(entry));
      continue;
    }
    if (!taken) return failure(taken.error());
    std::vector<PageRange> placed = entry.ranges;
    for (PageRange& range : placed) range.offset += sent_bytes_;
    (*task)->places = overlay((*task)->places, placed);
    round.tasks.push_back(std::move(entry));
  }
  sent_bytes_ += round.memory_bytes;
  return round;
}

uint64_t LiveMemory::count_written_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [pid, task] : tasks_) {
    const auto memory = lazy_memory(pid);
    auto tables = PageTables::open(pid);
    if (!memory || !tables) continue;
    for (const AddressRange& span : *memory) {
      (void)tables->scan(span, ScanFor::kInUse, [&](const ScannedRegion& region) -> Status {
        if (!region.is_unwritten) bytes += region.span.bytes();
        return {};
      });
    }
  }
  return bytes;
}

// ---- The frozen tree ----------------------------------------------------------------------------

// Gives every page of the frozen tree its place.
class LiveMemory::Layout {
 public:
  // `shares`: several tasks may share pages.
  Layout(uint64_t sent_bytes, bool shares)
      : zeros_(shares ? frame_of_zeros() : 0), shares_(shares) {
    round_.sent_bytes = sent_bytes;
  }

  // Call for all tasks before add(): notes the pages whose copies in the file are valid. Other
  // tasks may map the same pages.
  Status note_sent(const Task& task);
  // `known`: null for a task that no round has seen.
  Status add(const ProcessIdentity& process, const Task* known);
  FrozenRound take() {
    round_.all.memory_bytes = round_.sent_bytes + round_.unsent.memory_bytes;
    return std::move(round_);
  }

 private:
  Status add_region(PageTables& tables, const ScannedRegion& region, const Task* known);
  void add_page(uint64_t address, PageEntry entry, const uint64_t* place);
  void add_sent(uint64_t start, uint64_t end, uint64_t place) {
    append(round_.all.tasks.back().ranges, {start, end, place});
  }
  void add_unsent(uint64_t start, uint64_t end, uint64_t place) {
    append(round_.unsent.tasks.back().ranges, {start, end, place});
    append(round_.all.tasks.back().ranges, {start, end, round_.sent_bytes + place});
  }
  uint64_t next_place(uint64_t bytes) {
    return std::exchange(round_.unsent.memory_bytes, round_.unsent.memory_bytes + bytes);
  }

  const uint64_t zeros_;
  const bool shares_;
  FrozenRound round_;
  // The places of pages that several processes map: in the file, and among the unsent pages. The
  // frames of a frozen tree do not change: CRIU holds a reference to every page that it left out.
  std::unordered_map<uint64_t, uint64_t> sent_;
  std::unordered_map<uint64_t, uint64_t> unsent_;
};

Status LiveMemory::Layout::note_sent(const Task& task) {
  if (!shares_) return {};
  return visit_shared_sent(
      task, [&](PageEntry entry, uint64_t place) { sent_.emplace(entry.identity(), place); });
}

Status LiveMemory::Layout::add(const ProcessIdentity& process, const Task* known) {
  const auto pid = own_pid_of(process.pid);
  if (!pid) return failure(pid.error());
  const auto memory = lazy_memory(process.pid);
  if (!memory) return failure(memory.error());
  auto tables = PageTables::open(process.pid);
  if (!tables) return failure(tables.error());
  round_.all.tasks.push_back({*pid, process.pid, {}, process.start_time});
  round_.unsent.tasks.push_back(round_.all.tasks.back());
  for (const AddressRange& span : *memory) {
    const Status added = tables->find_pages_in_use(
        span, [&](const ScannedRegion& region) { return add_region(*tables, region, known); });
    if (!added) return added;
  }
  return {};
}

Status LiveMemory::Layout::add_region(PageTables& tables, const ScannedRegion& region,
                                      const Task* known) {
  static const std::vector<PageRange> kNone;
  const auto& places = known != nullptr && region.is_unwritten ? known->places : kNone;
  const auto add_part = [&](uint64_t start, uint64_t end, const uint64_t* place) -> Status {
    if (shares_) {
      return tables.list({start, end}, [&](uint64_t address, PageEntry entry) -> Status {
        const uint64_t at = place != nullptr ? *place + (address - start) : 0;
        add_page(address, entry, place != nullptr ? &at : nullptr);
        return {};
      });
    }
    if (place != nullptr) {
      add_sent(start, end, *place);
    } else {
      add_unsent(start, end, next_place(end - start));
    }
    return {};
  };
  return for_each_part(places, region.span, add_part);
}

// A page is sent once, and has one place for all processes that map it.
void LiveMemory::Layout::add_page(uint64_t address, PageEntry entry, const uint64_t* place) {
  const uint64_t end = address + kPageBytes;
  if (entry.is_present() && entry.frame() == zeros_ && zeros_ != 0) return;
  const bool is_shared = !entry.is_exclusive() && entry.frame() != 0;
  if (is_shared) {
    if (const auto sent = sent_.find(entry.identity()); sent != sent_.end()) {
      return add_sent(address, end, sent->second);
    }
  }
  if (place != nullptr) return add_sent(address, end, *place);
  if (!is_shared) return add_unsent(address, end, next_place(kPageBytes));
  const auto [known, is_new] = unsent_.try_emplace(entry.identity(), 0);
  if (is_new) known->second = next_place(kPageBytes);
  add_unsent(address, end, known->second);
}

Result<FrozenRound> LiveMemory::last_round(const std::vector<ProcessIdentity>& tasks) {
  const auto known = [&](const ProcessIdentity& process) -> const Task* {
    const auto found = tasks_.find(process.pid);
    return found != tasks_.end() && found->second.process == process ? &found->second : nullptr;
  };
  if (!tasks_.empty()) {
    // Opened since the last round: what was written behind the tracker's back is unknown.
    const bool is_certain = std::none_of(tasks.begin(), tasks.end(), [](const auto& process) {
      return !direct_writes(process.pid).empty();
    });
    if (!is_certain) tasks_.clear();
  }
  Layout layout(sent_bytes_, tasks.size() > 1);
  for (const ProcessIdentity& process : tasks) {
    if (const Task* task = known(process)) {
      if (Status noted = layout.note_sent(*task); !noted) return failure(noted.error());
    }
  }
  for (const ProcessIdentity& process : tasks) {
    if (Status added = layout.add(process, known(process)); !added) return failure(added.error());
  }
  return layout.take();
}

}  // namespace ppmr
