// Copies the nameless memory of a tree in rounds. Shared anonymous mappings and memfds are files of
// a tmpfs that belongs to the kernel. Deleted files of the tree's tmpfs that a process still has
// mapped or open belong here, too, for example the shared windows of MPI.
//
//   a round compares pages by their digests   finds the writes of any process: a child that lives
//                                             for a moment, one outside of the tree, the kernel
//   the tree is frozen                        35 ms for each GiB, through an existing mapping
//
// Rejected: to track writes in the page tables, as for private memory (processes/memory). Each
// process has its own page tables, so a hundred workers of a database cost a hundred scans. When a
// child ends, the record of its writes is lost.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/files/sent_content.h"

namespace ppmr {

struct SharedSegment {
  UniqueFd file;  // open for reading
  dev_t device = 0;
  uint64_t inode = 0;
  std::string name;                // as for memfd_create(2); empty for a deleted file
  uint64_t data_bytes = 0;         // bytes that are not in holes
  uint32_t tmpfs = kSharedMemory;  // a deleted file: the number of its tmpfs
  bool is_deleted_file() const { return tmpfs != kSharedMemory; }
};

// The numbers of the tmpfs of a tree, by device.
using TmpfsNumbers = std::map<dev_t, uint32_t>;

// Returns the name of a shared memory from the target of a link to it, "/memfd:NAME (deleted)" or
// "/dev/zero (deleted)". nullopt: the link leads to another file, or to System V shared memory,
// which CRIU makes in another way. Pure.
std::optional<std::string> name_of_segment(std::string_view link);

// Opens the shared memories and the deleted files of `tmpfs` that the processes of a tree have
// mapped or open, each once. Leaves out small memories and memories of huge pages. Returns nothing
// for a tree with a process in another user namespace. Errors: ESRCH.
Result<std::vector<SharedSegment>> open_shared_segments(pid_t root, const TmpfsNumbers& tmpfs = {});

// A name that FileRounds sends with the names of its tmpfs.
struct DeletedFile {
  uint32_t tmpfs = 0;
  file_record::Entry entry;
};

// Threads: one.
class SegmentRounds {
 public:
  using Sink = SentContent::Sink;
  // `tmpfs`: the tmpfs whose kTmpfs records come before the first round.
  explicit SegmentRounds(TmpfsNumbers tmpfs = {}) : tmpfs_(std::move(tmpfs)) {}

  // Passes what is new and what has changed to the sink, and returns how many bytes that was.
  // Errors: of the sink; of the system.
  Result<uint64_t> send_round(pid_t root, const Sink& sink);
  // Does the same as send_round(), for the memories that the last round found. The caller has
  // frozen the tree.
  Result<uint64_t> send_last(const Sink& sink);

  bool is_empty() const { return sent_.empty(); }
  // Lists the inodes of the memories that CRIU must leave out (restart_loader/criu/memory_apart.h).
  std::string list_of_inodes() const;
  // Returns an entry for each deleted file, to be put into the root of its tmpfs (deleted_name.h).
  // Call it after send_last(). Errors: of fstat(2).
  Result<std::vector<DeletedFile>> deleted_files() const;

 private:
  struct Sent {
    SharedSegment segment;
    SentContent content;
    MappedFile view;     // mapped for reading, with the size at the last round
    uint64_t round = 0;  // the last round that has seen the memory
  };

  // `size_bytes`: the size of the memory now.
  static Result<uint64_t> send(Sent& sent, uint64_t size_bytes, const SentContent::Read& read,
                               const Sink& sink);
  Status begin(Sent& sent, SharedSegment segment, const Sink& sink);

  TmpfsNumbers tmpfs_;
  std::map<std::pair<dev_t, uint64_t>, Sent> sent_;  // key: device, inode
  uint64_t next_number_ = 1;
  uint64_t round_ = 0;
};

}  // namespace ppmr
