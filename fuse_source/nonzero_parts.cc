#include "fuse_source/nonzero_parts.h"

#include <array>
#include <cstring>

#include "processes/memory/page_index.h"

namespace ppmr {
namespace {

// Fewer zero pages than this do not end a part. Each part costs an announcement and, unless it is
// the first part of its slot, a copy.
constexpr size_t kZeroPagesMin = 16;

}  // namespace

void find_nonzero(std::span<const std::byte> bytes,
                  std::vector<std::span<const std::byte>>& parts) {
  static constexpr std::array<std::byte, kPageBytes> kZeros{};
  parts.clear();
  size_t part_start = 0;
  size_t part_end = 0;  // behind the last page that is not zero
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) {
    if (std::memcmp(bytes.data() + at, kZeros.data(), kPageBytes) == 0) continue;
    if (part_end == 0) {
      part_start = at;
    } else if (at - part_end >= kZeroPagesMin * kPageBytes) {
      parts.push_back(bytes.subspan(part_start, part_end - part_start));
      part_start = at;
    }
    part_end = at + kPageBytes;
  }
  if (part_end > 0) parts.push_back(bytes.subspan(part_start, part_end - part_start));
}

}  // namespace ppmr
