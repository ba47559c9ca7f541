// Which files in memory a process may have written without a trace in their times.
//
// A write through a shared mapping changes the times of a file only if it faults. It does not fault
// where the page was written or, in a tmpfs, only read before through the same mapping. So a file
// counts as written
//
//   mapped, or open for writing     when somebody looks: it may be mapped for a while in between
//   closed after it was so          since the last look, whatever happened in between: fanotify(7)
//
// Nobody sees a descriptor that travels through a socket at both looks.
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

  UniqueFd closed_;  // invalid: nobody watches
  std::set<dev_t> devices_;
};

}  // namespace ppmr
