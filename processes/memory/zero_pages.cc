#include "processes/memory/zero_pages.h"

#include <fcntl.h>
#include <unistd.h>

#include "processes/memory/page_tables.h"

namespace ppmr {
namespace {

constexpr uint64_t kPagesPerBlock = 512;
// From include/uapi/linux/kernel-page-flags.h.
constexpr uint64_t kIsHuge = uint64_t{1} << 22;  // KPF_THP
constexpr uint64_t kIsZero = uint64_t{1} << 24;  // KPF_ZERO_PAGE

}  // namespace

ZeroPages::ZeroPages()
    : small_(frame_of_zeros()), flags_(open("/proc/kpageflags", O_RDONLY | O_CLOEXEC)) {}

bool ZeroPages::has(PageEntry entry) {
  // The kernel counts no mappings of a page of zeros, so the entry looks as if other processes
  // mapped the page, too.
  if (!entry.is_present() || entry.is_exclusive() || entry.frame() == 0) return false;
  if (entry.frame() == small_) return true;
  const uint64_t block = entry.frame() / kPagesPerBlock;
  const auto [known, is_new] = blocks_.try_emplace(block, false);
  if (is_new) known->second = is_huge(block);
  return known->second;
}

bool ZeroPages::is_huge(uint64_t block) const {
  uint64_t flags = 0;
  const auto at = static_cast<off_t>(block * kPagesPerBlock * sizeof(flags));
  return pread(flags_.get(), &flags, sizeof(flags), at) == sizeof(flags) &&
         (flags & (kIsHuge | kIsZero)) == (kIsHuge | kIsZero);
}

}  // namespace ppmr
