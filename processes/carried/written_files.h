// The regular files that a frozen tree has open for writing, with their sizes. A tree that is taken
// over from an epoch has written since. The takeover must know to which of them, and where they
// ended. CRIU notes no size of files that are only appended to, and no times.
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

// Whether a file is not as it was noted: it was written since, perhaps in place, or another file
// has its name. The time may also be an earlier one: that of the other file. Pure.
bool has_changed(const WrittenFile& noted, const struct stat& now);

// By path, each once; without deleted files. Errors: ESRCH for a task that has ended; EACCES.
Result<std::vector<WrittenFile>> read_written_files(const std::vector<ProcessIdentity>& tasks);

// Errors: of the file system; EPROTO for a file that ppmr has not written.
Status write_written_files(const std::string& path, const std::vector<WrittenFile>& files);
Result<std::vector<WrittenFile>> load_written_files(const std::string& path);

}  // namespace ppmr
