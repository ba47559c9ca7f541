// Fuzzes CRIU's images in a checkpoint that a source sent: pagemap, mm, pstree and
// files. The first byte of an input selects the image.
#include <set>

#include "restart_loader/images/bound_sockets.h"
#include "restart_loader/images/mm_image.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/images/pstree_image.h"
#include "tests/fuzz/fuzz.h"

namespace ppmr {
namespace {

void check_pagemap(const std::string& bytes) {
  const auto pagemap = parse_pagemap("pagemap", bytes);
  if (!pagemap) return;
  uint64_t last_end = 0;
  for (const PagemapEntry& entry : pagemap->entries) {
    REQUIRE(entry.start >= last_end && entry.end > entry.start && entry.end <= kAddressMax);
    last_end = entry.end;
  }
}

void check_mm(const std::string& bytes) {
  auto mm = MmImage::parse("mm", bytes);
  if (!mm) return;
  const std::vector<PageRange> areas = mm->lazy_areas();
  std::set<uint64_t> borders;
  mm->add_borders(areas, borders);
  mm->split(areas, borders);
  uint64_t last_end = 0;
  for (const PageRange& area : mm->lazy_areas()) {
    REQUIRE(area.start >= last_end && area.end > area.start);
    last_end = area.end;
  }
}

}  // namespace
}  // namespace ppmr

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  if (input.empty()) return;
  const std::string bytes = text_of(input.subspan(1));
  if (input[0] % 3 == 0) check_pagemap(bytes);
  if (input[0] % 3 == 1) check_mm(bytes);
  if (input[0] % 3 == 2) (void)parse_pstree("pstree", bytes);
  // Such a byte selects one of the images above, too. So every stored input still selects the image
  // that it was stored for.
  if (input[0] >= 0x80) (void)parse_bound_sockets("files", bytes);
}
