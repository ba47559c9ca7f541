// The pages of one process in CRIU's images: which ranges of its memory a lazy restore leaves out,
// and where their bytes are.
//
//   pagemap-PID.img   entries in the order of the addresses: address, number of pages, flags
//   pages-N.img       the bytes of the entries that are present, in the same order
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

inline constexpr uint64_t kPageBytes = 4096;

// Addresses of the process, at page boundaries, and the place of their bytes in the pages file.
struct PageRange {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;

  uint64_t bytes() const { return end - start; }
};

struct PageImages {
  std::shared_ptr<const UniqueFd> pages;  // null if there are no ranges
  std::vector<PageRange> ranges;          // by address, not overlapping
};

// `pid`: as the process sees itself. Errors: of the file system; EPROTO with the file and the fault
// for images that CRIU has not written.
Result<PageImages> read_page_images(const std::string& directory, pid_t pid);

}  // namespace ppmr
