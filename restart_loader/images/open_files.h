// files.img: the regular files that a tree had open or mapped when it was dumped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct OpenFile {
  std::string path;  // in the tree's root directory
  uint64_t size_bytes = 0;
  bool is_written = false;   // opened for writing
  bool is_appended = false;  // opened for writing, at its end only (O_APPEND)
};

// Returns the files whose size CRIU has noted. A file that was opened more than once is listed
// once, and is_appended only if each of its writers appends. Errors: of the file system; EPROTO.
Result<std::vector<OpenFile>> read_open_files(const std::string& path);

// Writes the image at `from` to `to` without the sizes of written files. CRIU then restores them
// whatever size they have. Errors: as read_open_files().
Status write_without_sizes(const std::string& from, const std::string& to);

}  // namespace ppmr
