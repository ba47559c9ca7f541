// Copies in rounds what a tree has in memory without a name: shared anonymous mappings and memfds,
// which are files of a tmpfs of the kernel's own, and files of the tree's tmpfs that are deleted
// but mapped or open, such as the shared windows of MPI.
//
//   pages are compared by their digests       no matter who writes them: a child that lives for a
//                                             moment, a process outside of the tree, the kernel
//   the tree is frozen                        35 ms for each GiB, through a mapping that is there
//
// Rejected: to track writes in the page tables, as for private memory (processes/memory). Each
// process has its own, so a hundred workers of a database cost a hundred scans, and what a child
// has written is forgotten when it ends.
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
  UniqueFd file;  // for reading
  dev_t device = 0;
  uint64_t inode = 0;
  std::string name;                // as for memfd_create(2); of a deleted file: none
  uint64_t data_bytes = 0;         // without holes
  uint32_t tmpfs = kSharedMemory;  // a deleted file: the number of its tmpfs
  bool is_deleted_file() const { return tmpfs != kSharedMemory; }
};

// The numbers of the tmpfs of a tree, by device.
using TmpfsNumbers = std::map<dev_t, uint32_t>;

// Returns the name in the target of a link to such a memory, "/memfd:NAME (deleted)" or
// "/dev/zero (deleted)"; nullopt: it is another file, or System V shared memory, which CRIU makes
// in another way. Pure.
std::optional<std::string> name_of_segment(std::string_view link);

// Opens the memories that the processes of a tree have mapped or open, each once, and the deleted
// files of those tmpfs. Leaves out small ones, those of huge pages, and all of a tree with another
// user namespace. Errors: ESRCH.
Result<std::vector<SharedSegment>> open_shared_segments(pid_t root, const TmpfsNumbers& tmpfs = {});

// A name that FileRounds sends with those of the tmpfs.
struct DeletedFile {
  uint32_t tmpfs = 0;
  file_record::Entry entry;
};

// Threads: one.
class SegmentRounds {
 public:
  using Sink = SentContent::Sink;
  // `tmpfs`: those whose records have begun before the first round.
  explicit SegmentRounds(TmpfsNumbers tmpfs = {}) : tmpfs_(std::move(tmpfs)) {}

  // Passes what is new and what has changed to the sink, and returns how many bytes that was.
  // Errors: of the sink; of the system.
  Result<uint64_t> send_round(pid_t root, const Sink& sink);
  // As send_round(), for the memories of the last round. The caller has frozen the tree.
  Result<uint64_t> send_last(const Sink& sink);

  bool is_empty() const { return sent_.empty(); }
  // Names what CRIU must leave out (restart_loader/criu/memory_apart.h).
  std::string list_of_inodes() const;
  // Returns an entry for the root of its tmpfs for each deleted file (deleted_name.h). Call it
  // after send_last(). Errors: of fstat(2).
  Result<std::vector<DeletedFile>> deleted_files() const;

 private:
  struct Sent {
    SharedSegment segment;
    SentContent content;
    MappedFile view;     // for reading, of the size that the last round has seen
    uint64_t round = 0;  // the last one that has seen it
  };

  static Result<uint64_t> send(Sent& sent, const SentContent::Read& read, const Sink& sink);
  Status begin(Sent& sent, SharedSegment segment, const Sink& sink);

  TmpfsNumbers tmpfs_;
  std::map<std::pair<dev_t, uint64_t>, Sent> sent_;  // by device and inode
  uint64_t next_number_ = 1;
  uint64_t round_ = 0;
};

}  // namespace ppmr
