// The memory of a running tree, copied in rounds. Each round has the pages that were written since
// the round before, and is appended to the memory file. When the tree is frozen, the page index
// says for each page where its newest copy is, and which pages must still be sent.
//
//   memory file   | round 1: all pages      | round 2    | 3 | frozen |
//   page index        ^  ^       ^  ^           ^    ^     ^    ^   ^
//
// Appended, not written over the earlier copy: no reader at the target can meet an old copy, and
// scattered pages travel as densely as others.
//
// Protected first, read afterwards: what is written during the read is found by the next round. A
// page that has gone (munmap, MADV_DONTNEED) is in no later index.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "processes/memory/page_index.h"
#include "processes/memory/write_tracker.h"
#include "processes/process_identity.h"

namespace ppmr {

// The memory of a frozen tree.
struct FrozenRound {
  PageIndex all;            // every page, with its place in the memory file
  PageIndex unsent;         // the pages that must still be sent; their places begin at 0
  uint64_t sent_bytes = 0;  // where the unsent pages begin in the memory file
};

// Threads: one at a time.
class LiveMemory {
 public:
  LiveMemory() = default;
  LiveMemory(const LiveMemory&) = delete;

  // Finds what the tree has written since the last round and tracks new processes. The places of
  // the index begin at 0; they belong behind those of the earlier rounds. The pages count as sent
  // from now on: after an error of the sending, the object must not be used again. Errors: those of
  // WriteTracker, if a process cannot be tracked; EOPNOTSUPP if the kernel writes to the memory of
  // a process directly (direct_writes()).
  Result<PageIndex> next_round(pid_t root);
  // Counts the bytes that the next round would have, of the tracked processes. Protects nothing.
  uint64_t count_written_bytes() const;
  // Lists the memory of `tasks`, which are frozen. Without rounds before, all of it is unsent.
  // Errors: those of PageTables.
  Result<FrozenRound> last_round(const std::vector<ProcessIdentity>& tasks);
  // What the rounds have sent counts no more: the frozen tree sends all pages. Ends the tracking.
  void forget() { tasks_.clear(); }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // The pages of a process whose newest copy was read from this process, by address.
  struct Task {
    ProcessIdentity process;
    std::unique_ptr<WriteTracker> tracker;
    std::vector<PageRange> places;
  };
  class Layout;

  // The pages that a round has or need not have: frames, or places in the swap space. Only a hint:
  // the frames of a running process can change. The frozen tree shows which pages are one.
  using Frames = std::set<uint64_t>;
  using VisitSent = std::function<void(PageEntry entry, uint64_t place)>;
  // Calls `visit` for the pages whose copies in the file are valid and that other processes map.
  static Status visit_shared_sent(const Task& task, const VisitSent& visit);
  // `frames`: null if no other process can share pages with the task.
  static Status take_written(Task& task, Frames* frames, IndexedTask& round, uint64_t& round_bytes);
  Result<Task*> track(const ProcessIdentity& process);

  std::map<pid_t, Task> tasks_;
  uint64_t sent_bytes_ = 0;
};

// Returns what lets the kernel or a device write into the memory of a process without its page
// tables, so that no tracker sees it (a file open with O_DIRECT, io_uring, RDMA); empty: nothing.
std::string direct_writes(pid_t pid);

// Replaces the places of `ranges` (by address, not overlapping) by those of `newer`.
std::vector<PageRange> overlay(const std::vector<PageRange>& ranges,
                               const std::vector<PageRange>& newer);

}  // namespace ppmr
