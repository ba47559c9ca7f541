// The PAGEMAP_SCAN ioctl of /proc/PID/pagemap, since Linux 6.7. Source:
// Documentation/admin-guide/mm/pagemap.rst of the kernel. The headers of Debian 12 lack it.
#pragma once

#include <sys/ioctl.h>

#include <cstdint>

namespace ppmr {

struct PageScan {
  uint64_t size;
  uint64_t flags;
  uint64_t start;
  uint64_t end;
  uint64_t walk_end;  // set by the kernel: where the scan stopped
  uint64_t regions;   // address of an array of ScannedPages
  uint64_t regions_count;
  uint64_t pages_max;
  uint64_t category_inverted;
  uint64_t category_mask;
  uint64_t category_anyof_mask;
  uint64_t return_mask;
};

struct ScannedPages {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};

inline constexpr unsigned long kPageScan = _IOWR('f', 16, PageScan);

inline constexpr uint64_t kPageIsTracked = 1U << 0;
inline constexpr uint64_t kPageIsWritten = 1U << 1;
inline constexpr uint64_t kPageIsPresent = 1U << 3;
inline constexpr uint64_t kPageIsSwapped = 1U << 4;
inline constexpr uint64_t kPageIsZero = 1U << 5;   // the kernel's page of zeros
inline constexpr uint64_t kPageIsGuard = 1U << 8;  // since Linux 6.15

}  // namespace ppmr
