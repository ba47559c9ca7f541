#include "restart_loader/pager/page_images.h"

#include <fmt/format.h>

#include <algorithm>

#include "restart_loader/pager/pagemap_image.h"

namespace ppmr {
namespace {

// The places of [start, end) in `indexed`. False: some memory has no place.
bool find_places(const std::vector<PageRange>& indexed, uint64_t start, uint64_t end,
                 std::vector<PageRange>& places) {
  auto range = std::upper_bound(indexed.begin(), indexed.end(), start,
                                [](uint64_t at, const PageRange& item) { return at < item.end; });
  while (start < end) {
    if (range == indexed.end() || range->start > start) return false;
    const uint64_t stop = std::min(end, range->end);
    places.push_back({start, stop, range->offset + (start - range->start)});
    start = stop;
    ++range;
  }
  return true;
}

}  // namespace

Result<PageImages> PageImages::open(std::string directory, const std::string& memory) {
  PageImages images(std::move(directory));
  if (memory.empty()) return images;
  auto file = PageFile::open(memory);
  if (!file) return failure(file.error());
  images.memory_ = std::move(*file);
  auto index = read_page_index(images.directory_ + "/" + kPageIndexFile);
  if (!index) return failure(index.error());
  images.index_ = std::move(*index);
  for (const IndexedTask& task : images.index_.tasks) {
    if (const auto images_of = images.of(task.pid); !images_of) return failure(images_of.error());
  }
  return images;
}

Result<TaskImages> PageImages::of(pid_t pid) const {
  const std::string path = fmt::format("{}/pagemap-{}.img", directory_, pid);
  const auto pagemap = read_pagemap(path);
  if (!pagemap) return failure(pagemap.error());
  const auto damaged = [&](const std::string& what) {
    return failure(EPROTO, fmt::format("{}: not an image that CRIU has written: {}", path, what));
  };
  const auto indexed = std::find_if(index_.tasks.begin(), index_.tasks.end(),
                                    [pid](const IndexedTask& task) { return task.pid == pid; });
  TaskImages images;
  bool in_images = false;
  uint64_t offset = 0;
  for (const PagemapEntry& entry : pagemap->entries) {
    if (entry.lazy && entry.present) {
      in_images = true;
      images.ranges.push_back({entry.start, entry.end, offset});
    } else if (entry.lazy && indexed == index_.tasks.end()) {
      return damaged("its pages were left to a page server");
    } else if (entry.lazy && !find_places(indexed->ranges, entry.start, entry.end, images.ranges)) {
      return failure(EPROTO, fmt::format("the page index lacks memory of process {} between {:#x} "
                                         "and {:#x}, which {} lists",
                                         pid, entry.start, entry.end, path));
    }
    if (entry.present) offset += entry.bytes();
  }
  if (images.ranges.empty()) return images;
  if (in_images && memory_) return damaged("it includes memory that is also in a memory file");
  images.pages = memory_;
  if (memory_) {
    images.ranges = unshared_parts(images.ranges, shared_);
    return images;
  }
  auto pages = PageFile::open(fmt::format("{}/pages-{}.img", directory_, pagemap->pages_id));
  if (!pages) return failure(pages.error());
  images.pages = std::move(*pages);
  return images;
}

Status PageImages::share_pages(const std::string& link) {
  const auto parents = read_pstree(directory_ + "/pstree.img");
  if (!parents) return failure(parents.error());
  auto shared = shared_ranges(index_, *parents);
  if (shared.empty()) return {};
  auto images = SharedImages::create({directory_, link}, index_, shared, *memory_);
  if (!images) return failure(images.error());
  shared_images_ = std::move(*images);
  shared_ = std::move(shared);
  return {};
}

void PageImages::criu_has_ended() {
  if (shared_images_) shared_images_->free_memory();
}

}  // namespace ppmr
