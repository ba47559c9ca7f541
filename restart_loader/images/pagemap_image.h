// The image pagemap-PID.img of CRIU: which memory of a process the dump has, in the order of the
// addresses, and the number N of the file pages-N.img that has the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct PagemapEntry {
  uint64_t start = 0;
  uint64_t end = 0;
  bool lazy = false;       // a lazy restore leaves it out
  bool present = false;    // pages-N.img has its bytes, after the bytes of earlier entries
  bool in_parent = false;  // an earlier dump has its bytes

  uint64_t bytes() const { return end - start; }
};

struct Pagemap {
  uint32_t pages_id = 0;
  std::vector<PagemapEntry> entries;
};

// Reads the image. Errors: of the file system; EPROTO with the file and the fault for a file that
// CRIU has not written.
Result<Pagemap> read_pagemap(const std::string& path);
// Parses `bytes`, the content of the file at `path`. Errors: EPROTO as above.
Result<Pagemap> parse_pagemap(const std::string& path, std::string bytes);
// Writes the image for CRIU 3.17 and later. Errors: of the file system.
Status write_pagemap(const std::string& path, const Pagemap& pagemap);

}  // namespace ppmr
