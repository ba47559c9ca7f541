#include "migration/source/unsent_pages.h"

#include <fmt/format.h>

#include "processes/memory/place_map.h"
#include "restart_loader/images/pagemap_image.h"

namespace ppmr {
namespace {

// A part of an index. Its pages are in the order in which they are added.
class PartWriter {
 public:
  void begin_task(const IndexedTask& task) {
    index_.tasks.push_back({task.pid, task.host_pid, {}});
  }
  void add(const PageRange& range) {
    places_.map(
        range.offset, range.bytes(),
        [this](uint64_t, uint64_t length) { return std::exchange(next_, next_ + length); },
        [&](uint64_t done, uint64_t length, uint64_t place) {
          add_pages(range.start + done, range.start + done + length, place);
        });
  }
  PageIndex take() {
    index_.memory_bytes = next_;
    return std::move(index_);
  }

 private:
  void add_pages(uint64_t start, uint64_t end, uint64_t place) {
    auto& ranges = index_.tasks.back().ranges;
    if (!ranges.empty() && ranges.back().end == start &&
        ranges.back().offset + ranges.back().bytes() == place) {
      ranges.back().end = end;
    } else {
      ranges.push_back({start, end, place});
    }
  }

  PageIndex index_;
  PlaceMap places_;
  uint64_t next_ = 0;
};

}  // namespace

Result<SplitIndex> split_index(const PageIndex& index, const std::string& images) {
  PartWriter unsent;
  PartWriter sent;
  std::vector<PageRange> parts;
  for (const IndexedTask& task : index.tasks) {
    unsent.begin_task(task);
    sent.begin_task(task);
    if (task.ranges.empty()) continue;  // a zombie has no pagemap
    const auto pagemap = read_pagemap(fmt::format("{}/pagemap-{}.img", images, task.pid));
    if (!pagemap) return failure(pagemap.error());
    for (const PagemapEntry& entry : pagemap->entries) {
      if (entry.present || !(entry.lazy || entry.in_parent)) continue;
      parts.clear();
      // The pager checks that all lazy pages are in the index.
      (void)find_places(task.ranges, entry.start, entry.end, parts);
      for (const PageRange& part : parts) (entry.lazy ? unsent : sent).add(part);
    }
  }
  return SplitIndex{unsent.take(), sent.take()};
}

}  // namespace ppmr
