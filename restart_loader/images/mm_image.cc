#include "restart_loader/images/mm_image.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"

namespace ppmr {
namespace {

constexpr uint32_t kMmMagic = 0x57492820;        // from criu/include/magic.h
constexpr uint32_t kAnonymousPrivate = 1U << 9;  // from criu/include/image.h
// A process may have 65,530 areas (vm.max_map_count).
constexpr ptrdiff_t kMaxBordersPerArea = 64;
constexpr uint64_t kWorthSplittingBytes = 256 << 10;
// The kernel never refuses a smaller area because of its size.
constexpr uint64_t kReservationBytes = 1ULL << 30;

// Flags of the areas vsyscall, vdso and vvar (criu/include/image.h), which CRIU restores itself.
constexpr uint32_t kOfTheKernel = (1U << 2) | (1U << 3) | (1U << 12);

// Returns the range from the first shared page of an area to the last one. Returns nullopt if the
// area has no shared pages, or if CRIU needs the area in one piece: a stack may grow below its
// start.
std::optional<std::pair<uint64_t, uint64_t>> shared_part(const criu::vma_entry& area,
                                                         const std::vector<PageRange>& shared) {
  if ((area.status() & kAnonymousPrivate) == 0 || (area.flags() & MAP_GROWSDOWN) != 0) return {};
  const auto first =
      std::upper_bound(shared.begin(), shared.end(), area.start(),
                       [](uint64_t from, const PageRange& range) { return from < range.end; });
  const auto behind =
      std::lower_bound(first, shared.end(), area.end(),
                       [](const PageRange& range, uint64_t end) { return range.start < end; });
  if (first == behind) return {};
  return std::pair(std::max(first->start, area.start()),
                   std::min(std::prev(behind)->end, area.end()));
}

}  // namespace

Result<MmImage> MmImage::read(const std::string& path) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  return parse(path, std::move(*bytes));
}

Result<MmImage> MmImage::parse(const std::string& path, std::string bytes) {
  auto image = ImageReader::of(path, std::move(bytes), kMmMagic);
  if (!image) return failure(image.error());
  criu::mm_entry mm;
  if (Status read = image->read(mm); !read) return failure(read.error());
  uint64_t last_end = 0;
  for (const criu::vma_entry& area : mm.vmas()) {
    if (area.start() < last_end || area.end() <= area.start()) {
      return image->damaged(fmt::format("wrong area {:#x}-{:#x}", area.start(), area.end()));
    }
    last_end = area.end();
  }
  return MmImage(std::move(mm));
}

// Selects the same areas as vma_entry_can_be_lazy() in CRIU 3.17 to 4.2.
std::vector<PageRange> MmImage::lazy_areas() const {
  std::vector<PageRange> areas;
  for (const criu::vma_entry& area : mm_.vmas()) {
    const uint32_t flags = area.flags();
    if ((area.status() & kAnonymousPrivate) == 0 || (area.status() & kOfTheKernel) != 0) continue;
    if ((flags & MAP_PRIVATE) == 0 || (flags & MAP_ANONYMOUS) == 0) continue;
    if ((flags & (MAP_LOCKED | MAP_HUGETLB)) != 0) continue;
    areas.push_back({area.start(), area.end(), 0});
  }
  return areas;
}

void MmImage::add_borders(const std::vector<PageRange>& shared, std::set<uint64_t>& borders) const {
  for (const criu::vma_entry& area : mm_.vmas()) {
    const auto part = shared_part(area, shared);
    if (!part || part->second - part->first < kWorthSplittingBytes) continue;
    // CRIU does not find the parent's area for a child's area if only the child has the area before
    // (prepare_cow_vmas_for() in 3.17 to 4.2). With a border behind the first page, CRIU fails to
    // find only that page.
    borders.insert({part->first, part->first + kPageBytes, part->second});
  }
}

void MmImage::split(const std::vector<PageRange>& shared, const std::set<uint64_t>& borders) {
  criu::mm_entry split = mm_;
  split.clear_vmas();
  for (const criu::vma_entry& area : mm_.vmas()) {
    criu::vma_entry* piece = split.add_vmas();
    *piece = area;
    if (!shared_part(area, shared)) continue;
    const auto first = borders.upper_bound(area.start());
    const auto behind = borders.lower_bound(area.end());
    if (first == borders.end() || *first >= area.end()) continue;
    if (std::distance(first, behind) > kMaxBordersPerArea) continue;
    for (auto border = first; border != behind; ++border) {
      piece->set_end(*border);
      piece = split.add_vmas();
      *piece = area;
      piece->set_start(*border);
    }
  }
  mm_ = std::move(split);
}

bool MmImage::exempt_reservations() {
  bool found = false;
  for (criu::vma_entry& area : *mm_.mutable_vmas()) {
    // The kernel counts an area when it becomes writable for the first time.
    if ((area.status() & kAnonymousPrivate) == 0 || (area.prot() & PROT_WRITE) != 0) continue;
    if (area.end() - area.start() < kReservationBytes) continue;
    if ((area.flags() & MAP_NORESERVE) != 0) continue;
    area.set_flags(area.flags() | MAP_NORESERVE);
    found = true;
  }
  return found;
}

Status MmImage::write(const std::string& path) const {
  ImageWriter image(kMmMagic);
  image.add(mm_);
  return image.write(path);
}

}  // namespace ppmr
