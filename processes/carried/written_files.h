// The regular files that a frozen tree has open for writing, with their sizes. A tree that is taken
// over from an epoch has written since. The takeover must know to which of them, and where they
// ended. CRIU notes no size of files that are only appended to.
#pragma once

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
};

// By path, each once; without deleted files. Errors: ESRCH for a task that has ended; EACCES.
Result<std::vector<WrittenFile>> read_written_files(const std::vector<ProcessIdentity>& tasks);

// Errors: of the file system; EPROTO for a file that ppmr has not written.
Status write_written_files(const std::string& path, const std::vector<WrittenFile>& files);
Result<std::vector<WrittenFile>> load_written_files(const std::string& path);

}  // namespace ppmr
