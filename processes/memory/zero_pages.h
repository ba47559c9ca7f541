// Recognizes the kernel's pages of zeros, which it maps where a process has read memory that it
// never wrote: a small one, and one of 2 MiB (transparent huge pages). The scan of Linux 6.7 leaves
// them out by itself.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/unique_fd.h"

namespace ppmr {

class PageEntry;

// Threads: one.
class ZeroPages {
 public:
  ZeroPages();
  // Returns false without the right to see the frames of pages (CAP_SYS_ADMIN).
  bool has(PageEntry entry);

 private:
  bool is_huge(uint64_t block) const;

  uint64_t small_;
  UniqueFd flags_;  // /proc/kpageflags: Documentation/admin-guide/mm/pagemap.rst of the kernel
  std::unordered_map<uint64_t, bool>
      blocks_;  // number of a block of 2 MiB -> whether it is the huge page of zeros
};

}  // namespace ppmr
