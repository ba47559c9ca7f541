// Finds the files in memory that a process may have written without a change of their times.
//
// A write through a shared mapping changes the times of a file only if it faults. It does not fault
// if the process has written the page before through the same mapping. In a tmpfs, an earlier read
// is enough. So a file counts as written if it is
//
//   mapped, or open for writing         at a look: it may be mapped again between two looks
//   closed after it was open like this  since the last look: fanotify(7) reports it
//
// Not found: a file whose descriptor is in flight in a socket at both looks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/files/tmpfs_mounts.h"

namespace ppmr {

// Device and inode of each file.
using FileSet = std::set<std::pair<dev_t, uint64_t>>;

// Threads: one.
class UnseenWrites {
 public:
  // Without the right to watch, every file counts as written.
  explicit UnseenWrites(const std::vector<PrivateTmpfs>& all);

  // Returns the files that the tree may have written since the last call; nullopt: every file may
  // be one of them. Errors: ESRCH.
  Result<std::optional<FileSet>> take(pid_t root);

 private:
  // Returns false if files may be missing.
  bool take_closed(FileSet& written);

  UniqueFd closed_;  // the fanotify group; invalid: there is none
  std::set<dev_t> devices_;
};

}  // namespace ppmr
