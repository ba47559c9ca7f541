// The memory of a running process, copied in rounds. Each round has the pages that the process has
// written since the round before. ppmr appends the round to the memory file. When the tree is
// frozen, the page index says for each page where its newest copy is, and which pages must still be
// sent.
//
//   memory file   | round 1: all pages      | round 2    | 3 | frozen |
//   page index        ^  ^       ^  ^           ^    ^     ^    ^   ^
//
// A round protects the pages first and reads them afterwards, so the next round finds what the
// process writes during the read. A page that has gone (munmap, MADV_DONTNEED) is in no later
// index.
//
// Processes share pages after fork(2). A round sends such a page once, for one of them. That is
// only a guess, because a page may cease to be shared at any time. What counts is which processes
// share a page when the tree is frozen. If one of them has not written the page, no process has, so
// its copy is valid for all.
//
// CRIU lists none of these pages, because a library hides them from it
// (restart_loader/criu/hidden_memory.h). If CRIU runs without the library, the pager checks that no
// page of CRIU's list is missing here, before the tree runs at the target.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "processes/memory/page_index.h"
#include "processes/memory/write_tracker.h"
#include "processes/proc_files.h"
#include "processes/process_identity.h"

namespace ppmr {

inline constexpr uint64_t kNoPlace = ~uint64_t{0};

// The private anonymous memory of a frozen tree that is in use, without locked memory: a lazy dump
// of CRIU leaves it out.
struct FrozenMemoryIndex {
  PageIndex all;            // every page, with its place in the memory file
  PageIndex unsent;         // the pages that must still be sent; their places begin at 0
  uint64_t sent_bytes = 0;  // where the unsent pages begin in the memory file
  std::string discarded;    // why the copies of the rounds are not used; empty: no reason to say
};

// Threads: one at a time.
class LiveMemory {
 public:
  using Attach =
      std::function<Result<std::unique_ptr<WriteTracker>>(const ProcessIdentity& process)>;

  LiveMemory() : LiveMemory(&WriteTracker::attach) {}
  // `attach`: attaches a tracker to a process, as WriteTracker::attach() does.
  explicit LiveMemory(Attach attach) : attach_(std::move(attach)) {}
  LiveMemory(const LiveMemory&) = delete;

  // Makes the rounds accept these processes, although they use RDMA. The processes release RDMA
  // before the tree is frozen, and the pages that a device has written then count as written
  // (jobs/rdma_release.h: shows-writes).
  void expect_release_of(std::set<pid_t> pids) { expected_ = std::move(pids); }
  // Finds what the tree has written since the last round. The places of the index begin at 0. In
  // the memory file they follow the places of the earlier rounds. The pages count as sent from now
  // on: if they cannot be sent, take_back() or the end of the move follows. Errors: those of
  // WriteTracker; EOPNOTSUPP if the kernel writes to the memory of a process directly
  // (direct_writes()); ESRCH if the root has ended.
  Result<PageIndex> next_round(pid_t root);
  // Counts the bytes that the next round would have. Protects nothing.
  uint64_t count_written_bytes() const;
  // Lists the memory of `tasks`, a frozen tree. Errors: those of PageTables; ESRCH; EAGAIN if the
  // kernel keeps moving pages.
  Result<FrozenMemoryIndex> index_frozen(const std::vector<ProcessIdentity>& tasks) const;
  // Call it when the unsent pages of a frozen tree are in the memory file, and the tree goes on.
  // These pages count as written, so the next round has them again.
  void note_frozen_sent(const FrozenMemoryIndex& index) {
    sent_bytes_ += index.unsent.memory_bytes;
  }
  // Discards the copies of all rounds, and ends the tracking.
  void forget() { tracked_.clear(); }
  // Does the same as forget(), for a memory file that is empty again.
  void begin_anew() { forget(), sent_bytes_ = 0; }
  // Call it when only the first `kept_bytes` of the memory file have arrived. The pages behind them
  // count as written, and the next round begins there.
  void take_back(uint64_t kept_bytes);
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Tracked {
    ProcessIdentity process;
    std::unique_ptr<WriteTracker> tracker;
    std::vector<PageRange> places;  // places of the newest copies, sorted by address
  };
  struct Round {
    PageIndex index;
    bool shares = false;  // several processes may share pages
    // The places of shared pages in this round, by PageEntry::identity(); kNoPlace: an earlier
    // round has sent the page.
    std::unordered_map<uint64_t, uint64_t> shared;
  };

  Status check_certain(const std::vector<ProcessStat>& tree) const;
  // Removes the process from `tracked_` and returns it, or attaches a tracker.
  Result<Tracked> take_tracked(const ProcessIdentity& process);
  Status add_process(const ProcessIdentity& process, Round& round);

  Attach attach_;
  std::map<pid_t, Tracked> tracked_;
  std::set<pid_t> expected_;
  uint64_t sent_bytes_ = 0;
};

// Returns what lets the kernel or a device write into the memory of a process without its page
// tables, so that no tracker sees it (a file open with O_DIRECT, io_uring, RDMA); empty: nothing.
// `expects_release`: RDMA does not count.
std::string direct_writes(pid_t pid, bool expects_release = false);

// Returns the parts of `ranges` that are in `memory` (both sorted by address, not overlapping).
std::vector<PageRange> within(const std::vector<PageRange>& ranges,
                              const std::vector<AddressRange>& memory);

// Replaces the places of `ranges` (sorted by address, not overlapping) by those of `newer`;
// kNoPlace removes a page.
std::vector<PageRange> overlay(const std::vector<PageRange>& ranges,
                               const std::vector<PageRange>& newer);

}  // namespace ppmr
