// Writes the memory file of one tree, which is a checkpoint of its own. The file has the rounds of
// the running tree, one behind the other, and then the memory of the frozen tree that no round has
// sent (processes/memory).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/source/live_rounds.h"
#include "mount/mount_table.h"
#include "processes/memory/live_memory.h"
#include "processes/memory/memory_reader.h"
#include "processes/memory/page_reader.h"

namespace ppmr {

namespace request {
struct SendMemory;
}  // namespace request

struct SealedTree {
  uint64_t bytes = 0;
  uint64_t files = 0;
};

struct MemoryFilePlace {
  MountEntry mount;
  // A file at this node, to which this process copies the memory itself. Empty: the file is in the
  // mount.
  std::string local_file;
  std::string checkpoint;  // the name of the file in the mount
  std::string work;        // a directory for page indexes
  PaceFiles pace;          // of the rounds
  // The offset in the page index at which this file begins: all epochs of a run share one range of
  // offsets.
  uint64_t first_offset = 0;
};

struct RoundOptions {
  bool may_pause = true;
  uint64_t slow_down_percent = 0;  // share of time that the tree stands still; not for local files
  std::function<void(uint64_t bytes)> on_begin;  // may be empty
};

// When a frozen tree may go on.
enum class SentWhen {
  kArrived,    // the target has the memory
  kFollows,    // post-copy: the target may want pages out of their order
  kInThePool,  // the daemon has read the memory; it is sent while the tree runs
};

// Defers the errors of writes to the checkpoint until its seal, for which the tree waits anyway.
Status defer_errors(const MountEntry& mount, const std::string& checkpoint);

// Returns when the target has verified the checkpoint. `patience`: the longest time without
// progress.
Result<SealedTree> seal_checkpoint(const MountEntry& mount, const std::string& checkpoint,
                                   std::chrono::milliseconds patience);

// Threads: one at a time.
class MemoryFile {
 public:
  // The file stays open until the memory is in it, because the target takes a closed file for
  // complete. Errors: those of the file system and of the daemon.
  static Result<MemoryFile> create(MemoryFilePlace place);

  // Sends what the running tree has written since the round before. Errors: those of
  // LiveMemory::next_round(), of the page reader and of the daemon (EIO).
  Result<Round> send_round(LiveMemory& live, pid_t root, const RoundOptions& options);
  // Removes what the rounds have sent, so that the target has room to receive all memory again.
  // Errors: those of create().
  Status start_anew();
  // Starts the page reader of the frozen tree, ahead of time.
  Status prepare_frozen();
  // Sends the memory of the frozen tree that no round has sent. `patience`: nullopt: waits as long
  // as the daemon answers.
  Status send_frozen(const FrozenMemoryIndex& index, SentWhen when,
                     std::optional<std::chrono::milliseconds> patience = {});
  // Closes the file, because the memory is complete or will never be.
  void close() { file_.reset(); }

  const std::string& checkpoint() const { return place_.checkpoint; }

 private:
  MemoryFile() = default;
  bool is_local() const { return !place_.local_file.empty(); }
  static Result<MemoryFile> create_local(MemoryFilePlace place);
  // Copies the pages of the index to the local file.
  Status copy(const PageIndex& index, MemoryReader::Tree tree, uint64_t file_offset,
              const PaceFiles& files);
  Status ask_to_send(const request::SendMemory& request, PageReaderProcess& reader,
                     std::optional<std::chrono::milliseconds> patience = {}) const;

  MemoryFilePlace place_;
  UniqueFd file_;
  std::optional<PageReaderProcess> reader_;  // of the frozen tree
  std::vector<std::byte> buffer_;            // for a local file
  size_t rounds_ = 0;
};

struct RoundsOptions {
  // Returns the present limits. During a pause, returns only at its end. An error ends the copying.
  std::function<Result<LiveLimits>()> limits;
  std::function<std::chrono::nanoseconds()> time_paused;         // total so far; may be empty
  std::function<void(unsigned round, uint64_t bytes)> on_begin;  // may be empty
  std::function<void(unsigned round, uint64_t bytes)> on_round;
  std::function<void(const std::string&)> on_warning;  // a sentence for the user
};

// Copies memory in rounds until the rest fits the promised downtime. Appends the rounds. Errors:
// those of MemoryFile::send_round() and of `limits`; ETIME if a limit cancels.
Status copy_in_rounds(MemoryFile& file, LiveMemory& live, pid_t root, const RoundsOptions& options,
                      std::vector<Round>& rounds);

}  // namespace ppmr
