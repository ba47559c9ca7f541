// The images that CRIU writes for a tree whose memory is not in the images.
//
//   CRIU writes     to a tmpfs that is in no directory
//     pages-N.img     symbolic links into the checkpoint: memory that CRIU must write itself
//     (shared,
//                     locked or huge pages) can be large, and travels while it is written
//     the others      small, but with one or more for each task
//
// A file in the mount costs three round trips to the mount's daemon (look up, create, write) while
// the tree is frozen. Without the tmpfs, these round trips take half of the dump of 2,000 threads
// (bench/run --only shapes). So the daemon receives all small files at once, in a bundle (mount).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Returns how many pages files CRIU will write for a tree: one for each process and each shared
// memory. The number is an estimate while the tree runs. Errors: ESRCH.
Result<size_t> count_pages_files(pid_t root);

// Threads: one.
class DumpImages {
 public:
  // `checkpoint`: the directory in the mount, for the pages files. CRIU writes pages files with
  // numbers up to `links` directly to the checkpoint; bundle() copies the others after the dump.
  // Errors: those of the file system; ENOSYS before Linux 5.2.
  static Result<DumpImages> create(std::string checkpoint, size_t links);

  std::string path() const;  // the directory for CRIU; valid as long as this object exists
  // Returns a bundle of the files in memory. Copies files that do not fit into the checkpoint.
  // Errors: those of the file system.
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
