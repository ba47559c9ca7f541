// The regular files that a frozen tree has open for writing, with their sizes. A protected tree
// goes on writing after an epoch. A takeover from this epoch must know which files the tree has
// written since, and where they ended at the epoch. CRIU records no size of files that are only
// appended to, and no times.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

// The name of the file among CRIU's images.
inline constexpr const char* kWrittenFilesFile = "written-files.img";

struct WrittenFile {
  std::string path;  // as the tree sees it
  uint64_t size_bytes = 0;
  bool is_appended = false;  // each of its writers writes at its end only (O_APPEND)
  // When it was last modified, by the clock of its file system; 0: not noted.
  int64_t modified_ns = 0;
};

// Returns whether a file differs from its record: a process has written to it since, perhaps in
// place, or another file has its name now. An earlier time is a difference, too: the other file may
// be older. Pure.
bool has_changed(const WrittenFile& noted, const struct stat& now);

// Returns the files sorted by path, each once, without deleted files. Errors: ESRCH for a task that
// has ended; EACCES.
Result<std::vector<WrittenFile>> read_written_files(const std::vector<ProcessIdentity>& tasks);

// Errors: of the file system; EPROTO for a file that ppmr has not written.
Status write_written_files(const std::string& path, const std::vector<WrittenFile>& files);
Result<std::vector<WrittenFile>> load_written_files(const std::string& path);

}  // namespace ppmr
