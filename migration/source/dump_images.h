// The images that CRIU writes when it dumps a tree whose memory moves apart from them.
//
//   CRIU writes     to a tmpfs that is in no directory
//     pages-N.img     symbolic links into the checkpoint: memory that CRIU must write itself
//     (shared,
//                     locked or huge pages) can be large, and travels while it is written
//     the others      small, but with one or more for each task
//
// A file costs three round trips to the daemon of the mount (look up, create, write), during which
// the tree is frozen: half of the dump of 2,000 threads (bench/run --only shapes). The daemon gets
// these files at once, in a bundle (mount).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// How many files of pages CRIU will write for a tree: one for each process and each shared memory.
// An estimate while the tree runs. Errors: ESRCH.
Result<size_t> count_pages_files(pid_t root);

// Threads: one.
class DumpImages {
 public:
  // `checkpoint`: the directory in the mount, where the pages go. CRIU's files of pages with
  // numbers up to `links` go there at once, others after the dump. Errors: of the file system;
  // ENOSYS before Linux 5.2.
  static Result<DumpImages> create(std::string checkpoint, size_t links);

  std::string path() const;  // of the directory for CRIU, as long as this object exists
  // Of the files in memory. Copies those into the checkpoint for which a bundle has no room.
  // Errors: of the file system.
  Result<UniqueFd> bundle() const;

 private:
  DumpImages(std::string checkpoint, size_t links, UniqueFd memory)
      : checkpoint_(std::move(checkpoint)), links_(links), memory_(std::move(memory)) {}
  bool is_link_to_pages(const std::string& name) const;

  std::string checkpoint_;
  size_t links_ = 0;
  UniqueFd memory_;  // the tmpfs
};

}  // namespace ppmr
