#include "restart_loader/pager/equal_pages.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "processes/memory/page_index.h"
#include "processes/memory/place_map.h"

namespace ppmr {
namespace {

// A file takes two descriptors; a process often has a limit of 1,024.
constexpr size_t kOpenMax = 256;
constexpr uint64_t kCompareBytes = 1 << 20;

// Appends, or extends the last part.
void add_part(std::vector<DumpedPart>& parts, const DumpedPart& part) {
  if (!parts.empty()) {
    DumpedPart& last = parts.back();
    if (last.end == part.start && last.owner == part.owner &&
        last.from + (last.end - last.start) == part.from) {
      last.end = part.end;
      return;
    }
  }
  parts.push_back(part);
}

class Comparison {
 public:
  Comparison(const std::vector<const Pagemap*>& pagemaps, DumpedFiles& files)
      : files_(files), own_bytes_(kCompareBytes), other_bytes_(kCompareBytes) {
    uint64_t begin = 0;
    for (const Pagemap* pagemap : pagemaps) {
      begins_.push_back(begin);
      for (const PagemapEntry& entry : pagemap->entries) {
        if (entry.present) begin += entry.bytes();
      }
    }
  }

  Result<std::vector<DumpedPart>> parts_of(size_t process, const Pagemap& pagemap) {
    std::vector<DumpedPart> parts;
    uint64_t place = begins_[process];
    Status done;
    for (const PagemapEntry& entry : pagemap.entries) {
      if (!entry.present) continue;
      // `first_` maps an address to the place of the first process that has pages there.
      first_.map(
          entry.start, entry.bytes(), [&](uint64_t behind, uint64_t) { return place + behind; },
          [&](uint64_t behind, uint64_t length, uint64_t first) {
            const uint64_t start = entry.start + behind;
            const DumpedPart own{start, start + length, process, place + behind - begins_[process]};
            if (first == place + behind) {
              add_part(parts, own);
            } else if (done) {
              done = compare(own, first, parts);
            }
          });
      if (!done) return failure(done.error());
      place += entry.bytes();
    }
    return parts;
  }

 private:
  Status compare(const DumpedPart& own, uint64_t first, std::vector<DumpedPart>& parts) {
    const size_t owner = static_cast<size_t>(
        std::distance(begins_.begin(), std::upper_bound(begins_.begin(), begins_.end(), first)) -
        1);
    const uint64_t from = first - begins_[owner];
    for (uint64_t done = 0; done < own.end - own.start;) {
      const size_t length = std::min(own.end - own.start - done, kCompareBytes);
      const auto other = files_.open(owner);
      if (!other) return failure(other.error());
      const auto file = files_.open(own.owner);
      if (!file) return failure(file.error());
      const auto theirs = (*other)->read(from + done, length, other_bytes_.data());
      if (!theirs) return failure(theirs.error());
      const auto ours = (*file)->read(own.from + done, length, own_bytes_.data());
      if (!ours) return failure(ours.error());
      for (uint64_t at = 0; at < length; at += kPageBytes) {
        const uint64_t start = own.start + done + at;
        const bool is_equal = std::memcmp(*ours + at, *theirs + at, kPageBytes) == 0;
        add_part(parts,
                 is_equal ? DumpedPart{start, start + kPageBytes, owner, from + done + at}
                          : DumpedPart{start, start + kPageBytes, own.owner, own.from + done + at});
      }
      done += length;
    }
    return {};
  }

  DumpedFiles& files_;
  // The position of each pages file in a sequence of all pages files. A file without pages begins
  // at the position of the next file.
  std::vector<uint64_t> begins_;
  PlaceMap first_;
  std::vector<std::byte> own_bytes_;
  std::vector<std::byte> other_bytes_;
};

}  // namespace

Result<std::shared_ptr<PageFile>> DumpedFiles::open(size_t owner) {
  const auto found = std::find_if(opened_.rbegin(), opened_.rend(),
                                  [owner](const Opened& one) { return one.owner == owner; });
  if (found != opened_.rend()) {
    std::rotate(std::prev(found.base()), found.base(), opened_.end());
    return opened_.back().file;
  }
  auto file = PageFile::open(paths_.at(owner));
  if (!file) return file;
  // If borrowing fails, the file is read through the mount.
  (void)(*file)->borrow({false, [] { return false; }, [] {}});
  if (opened_.size() == kOpenMax) opened_.erase(opened_.begin());
  opened_.push_back({owner, *file});
  return file;
}

Result<std::vector<std::vector<DumpedPart>>> find_equal_pages(
    const std::vector<const Pagemap*>& pagemaps, DumpedFiles& files) {
  Comparison comparison(pagemaps, files);
  std::vector<std::vector<DumpedPart>> found;
  for (size_t i = 0; i < pagemaps.size(); ++i) {
    auto parts = comparison.parts_of(i, *pagemaps[i]);
    if (!parts) return failure(parts.error());
    found.push_back(std::move(*parts));
  }
  return found;
}

}  // namespace ppmr
