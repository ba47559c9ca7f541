#include "restart_loader/pager/page_images.h"

#include <fmt/format.h>

#include <algorithm>

#include "restart_loader/images/mm_image.h"
#include "restart_loader/images/pagemap_image.h"

namespace ppmr {
namespace {

// Adds entries for memory that only the index has. A dump does not list what was hidden from CRIU
// (restart_loader/criu/hidden_memory.h).
void add_unlisted(const std::vector<PageRange>& indexed, std::vector<PagemapEntry>& entries) {
  std::vector<PagemapEntry> all;
  auto entry = entries.begin();
  const auto add = [&](uint64_t start, uint64_t end) {
    const bool goes_on = !all.empty() && all.back().end == start && all.back().lazy &&
                         !all.back().present && !all.back().in_parent;
    if (goes_on) {
      all.back().end = end;
    } else {
      all.push_back({start, end, /*lazy=*/true, /*present=*/false, /*in_parent=*/false});
    }
  };
  for (const PageRange& range : indexed) {
    uint64_t at = range.start;
    while (at < range.end) {
      while (entry != entries.end() && entry->end <= at) all.push_back(*entry++);
      const bool is_before = entry == entries.end() || at < entry->start;
      const uint64_t stop = entry == entries.end()
                                ? range.end
                                : std::min(range.end, is_before ? entry->start : entry->end);
      if (is_before) add(at, stop);
      at = stop;
    }
  }
  all.insert(all.end(), entry, entries.end());
  entries = std::move(all);
}

}  // namespace

Result<PageImages> PageImages::open(RestoreImages from, const std::string& memory) {
  PageImages images(std::move(from));
  if (memory.empty()) return images;
  auto file = PageFile::open(memory);
  if (!file) return failure(file.error());
  images.file_ = std::move(*file);
  auto index = read_page_index(images.images_.path_of(kPageIndexFile));
  if (!index) return failure(index.error());
  images.index_ = std::move(*index);
  for (const IndexedTask& task : images.index_.tasks) {
    auto pagemap = read_pagemap(images.pagemap_path(task.pid));
    if (!pagemap) return failure(pagemap.error());
    add_unlisted(task.ranges, pagemap->entries);
    images.pagemaps_[task.pid] = std::move(*pagemap);
    if (const auto images_of = images.of(task.pid); !images_of) return failure(images_of.error());
  }
  return images;
}

std::string PageImages::pagemap_path(pid_t pid) const {
  return images_.path_of(fmt::format("pagemap-{}.img", pid));
}

Result<TaskImages> PageImages::of(pid_t pid) const {
  if (const auto known = pagemaps_.find(pid); known != pagemaps_.end()) {
    return of(pid, known->second);
  }
  const auto pagemap = read_pagemap(pagemap_path(pid));
  if (!pagemap) return failure(pagemap.error());
  return of(pid, *pagemap);
}

Result<TaskImages> PageImages::of(pid_t pid, const Pagemap& pagemap) const {
  const auto damaged = [&](const std::string& what) {
    return failure(
        EPROTO, fmt::format("{}: not an image that CRIU has written: {}", pagemap_path(pid), what));
  };
  const auto indexed = std::find_if(index_.tasks.begin(), index_.tasks.end(),
                                    [pid](const IndexedTask& task) { return task.pid == pid; });
  TaskImages images;
  bool in_images = false;
  uint64_t offset = 0;
  for (const PagemapEntry& entry : pagemap.entries) {
    if (entry.lazy && entry.present) {
      in_images = true;
      images.ranges.push_back({entry.start, entry.end, offset});
    } else if (entry.lazy && indexed == index_.tasks.end()) {
      return damaged("its pages were left to a page server");
    } else if (entry.lazy && !find_places(indexed->ranges, entry.start, entry.end, images.ranges)) {
      return failure(EPROTO, fmt::format("the page index lacks memory of process {} between {:#x} "
                                         "and {:#x}, which {} lists",
                                         pid, entry.start, entry.end, pagemap_path(pid)));
    }
    if (entry.present) offset += entry.bytes();
  }
  if (images.ranges.empty()) return images;
  if (in_images && file_) return damaged("it includes memory that is also in a memory file");
  if (file_) {
    images.pages = file_;
    images.ranges = unshared_parts(images.ranges, shared_);
    return images;
  }
  auto file = PageFile::open(images_.path_of(fmt::format("pages-{}.img", pagemap.pages_id)));
  if (!file) return failure(file.error());
  images.pages = std::move(*file);
  return images;
}

Status PageImages::prepare_images(const std::string& link) {
  auto shared = file_ ? write_changed_images() : std::vector<PageRange>{};
  const Status published = shared ? images_.publish(link) : failure(shared.error());
  if (!published) {
    images_.free_memory();
    return published;
  }
  // Only now is it certain that CRIU restores these pages.
  shared_ = std::move(*shared);
  return {};
}

Result<std::vector<PageRange>> PageImages::write_changed_images() {
  if (Status exempt = exempt_reservations(); !exempt) return failure(exempt.error());
  const auto parents = read_pstree(images_.path_of("pstree.img"));
  if (!parents) return failure(parents.error());
  auto shared = shared_ranges(index_, *parents);
  if (shared.empty()) return shared;
  const Status written = write_shared_pages(images_, index_, shared, *file_, pagemaps_);
  if (!written) return failure(written.error());
  return shared;
}

Status PageImages::exempt_reservations() {
  for (const IndexedTask& task : index_.tasks) {
    const std::string name = fmt::format("mm-{}.img", task.pid);
    auto mm = MmImage::read(images_.path_of(name));
    if (!mm) return failure(mm.error());
    if (!mm->exempt_reservations()) continue;
    const auto path = images_.path_for_change(name);
    if (!path) return failure(path.error());
    if (Status written = mm->write(*path); !written) return written;
  }
  return {};
}

}  // namespace ppmr
