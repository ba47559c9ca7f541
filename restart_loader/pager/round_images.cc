#include "restart_loader/pager/round_images.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "processes/memory/place_map.h"
#include "restart_loader/images/mm_image.h"

namespace ppmr {
namespace {

constexpr const char* kParent = "/parent";
constexpr size_t kRoundsMax = 1000;  // a longer chain must be a circle

using Ranges = std::vector<PageRange>;

tl::unexpected<Error> no_page(const std::string& path, const PagemapEntry& entry) {
  return failure(EPROTO, fmt::format("{}: no round has memory between {:#x} and {:#x}, which it "
                                     "leaves to them",
                                     path, entry.start, entry.end));
}

std::string pagemap_path(const std::string& directory, pid_t pid) {
  return fmt::format("{}/pagemap-{}.img", directory, pid);
}

class Rounds {
 public:
  explicit Rounds(PageFiles& files) : files_(files) {}

  Status open(std::string images);
  // Returns the places of the pages that the last dump of a process may have left to rounds.
  Result<Ranges> pages_of(pid_t pid);

 private:
  Result<Ranges> pages_in(const std::string& round, pid_t pid, const Ranges& older);
  Result<uint64_t> place_of(const std::string& path);

  PageFiles& files_;
  std::vector<std::string> directories_;    // the latest round first; without symbolic links,
                                            // because the daemon lends files by their paths
  std::map<std::string, uint64_t> places_;  // key: the path of a pages file
};

Status Rounds::open(std::string images) {
  while (follows_rounds(images)) {
    std::error_code error;
    images = std::filesystem::canonical(images + kParent, error);
    if (error) return system_failure("open", images + kParent, error.value());
    directories_.push_back(images);
    if (directories_.size() > kRoundsMax) return failure(ELOOP, images + ": has too many parents");
  }
  return {};
}

Result<Ranges> Rounds::pages_of(pid_t pid) {
  // A process that began after a round has no images in that round.
  const auto is_in = [pid](const std::string& round) {
    return access(pagemap_path(round, pid).c_str(), F_OK) == 0;
  };
  const auto oldest = std::find_if_not(directories_.begin(), directories_.end(), is_in);
  Ranges pages;
  for (auto round = std::make_reverse_iterator(oldest); round != directories_.rend(); ++round) {
    auto found = pages_in(*round, pid, pages);
    if (!found) return found;
    pages = std::move(*found);
  }
  return pages;
}

Result<Ranges> Rounds::pages_in(const std::string& round, pid_t pid, const Ranges& older) {
  const std::string path = pagemap_path(round, pid);
  const auto pagemap = read_pagemap(path);
  if (!pagemap) return failure(pagemap.error());
  Ranges pages;
  uint64_t place = 0;
  uint64_t bytes = 0;
  for (const PagemapEntry& entry : pagemap->entries) {
    if (!entry.present) {
      if (!entry.in_parent || !find_places(older, entry.start, entry.end, pages)) {
        return no_page(path, entry);
      }
      continue;
    }
    if (bytes == 0) {
      auto first = place_of(fmt::format("{}/pages-{}.img", round, pagemap->pages_id));
      if (!first) return failure(first.error());
      place = *first;
    }
    if (entry.bytes() > PageFiles::kFileSpanBytes - bytes) return no_page(path, entry);
    pages.push_back({entry.start, entry.end, place + bytes});
    bytes += entry.bytes();
  }
  return pages;
}

Result<uint64_t> Rounds::place_of(const std::string& path) {
  const auto known = places_.find(path);
  if (known != places_.end()) return known->second;
  auto file = PageFile::open(path);
  if (!file) return failure(file.error());
  const uint64_t place = files_.add(std::move(*file));
  places_.emplace(path, place);
  return place;
}

// The pages of the last dump. In `pagemap`, the pages of rounds are lazy where `areas` permits it.
struct LazyPages {
  Pagemap pagemap;
  Ranges places;  // places of the pages that are not in rounds
  Ranges of_rounds;
};

Result<LazyPages> make_lazy(const std::string& path, const Pagemap& pagemap, const Ranges& indexed,
                            const Ranges& in_rounds, const Ranges& areas) {
  LazyPages lazy{{pagemap.pages_id, {}}, {}, {}};
  for (const PagemapEntry& entry : pagemap.entries) {
    if (!entry.in_parent) {
      lazy.pagemap.entries.push_back(entry);
      // PageImages has already checked that these pages are in the index.
      if (entry.lazy) (void)find_places(indexed, entry.start, entry.end, lazy.places);
      continue;
    }
    Ranges parts;
    (void)find_places(areas, entry.start, entry.end, parts);
    uint64_t at = entry.start;
    for (const PageRange& part : parts) {
      if (at < part.start) lazy.pagemap.entries.push_back({at, part.start, false, false, true});
      lazy.pagemap.entries.push_back({part.start, part.end, true, false, false});
      if (!find_places(in_rounds, part.start, part.end, lazy.of_rounds)) {
        return no_page(path, entry);
      }
      at = part.end;
    }
    if (at < entry.end) lazy.pagemap.entries.push_back({at, entry.end, false, false, true});
  }
  return lazy;
}

// Gives pages that processes share one place, although each process has sent its own copy.
// `shared`: the places that pages of rounds have at the source.
void share(const Ranges& shared, PlaceMap& places, Ranges& of_rounds) {
  Ranges result;
  for (const PageRange& range : of_rounds) {
    Ranges parts;
    (void)find_places(shared, range.start, range.end, parts);
    uint64_t at = range.start;
    const auto keep_until = [&](uint64_t end) {
      if (at < end) result.push_back({at, end, range.offset + (at - range.start)});
      at = end;
    };
    for (const PageRange& part : parts) {
      keep_until(part.start);
      places.map(
          part.offset, part.bytes(),
          [&](uint64_t done, uint64_t) { return range.offset + (part.start + done - range.start); },
          [&](uint64_t done, uint64_t length, uint64_t place) {
            result.push_back({part.start + done, part.start + done + length, place});
          });
      at = part.end;
    }
    keep_until(range.end);
  }
  of_rounds = std::move(result);
}

}  // namespace

bool follows_rounds(const std::string& images) {
  std::error_code ignored;
  return std::filesystem::is_symlink(images + kParent, ignored);
}

Result<RoundImages> read_round_images(const std::string& images, const PageIndex& index,
                                      PageFiles& files) {
  Rounds rounds(files);
  if (Status opened = rounds.open(images); !opened) return failure(opened.error());
  PageIndex shared;
  const std::string shared_path = images + "/" + kRoundsIndexFile;
  if (access(shared_path.c_str(), F_OK) == 0) {  // the tree has several processes
    auto read = read_page_index(shared_path);
    if (!read) return failure(read.error());
    shared = std::move(*read);
  }
  RoundImages found{{}, index};
  PlaceMap places;
  for (IndexedTask& task : found.index.tasks) {
    const std::string path = pagemap_path(images, task.pid);
    auto pagemap = read_pagemap(path);
    if (!pagemap) return failure(pagemap.error());
    const bool has_rounds = std::any_of(pagemap->entries.begin(), pagemap->entries.end(),
                                        [](const PagemapEntry& entry) { return entry.in_parent; });
    if (!has_rounds) continue;
    const auto in_rounds = rounds.pages_of(task.pid);
    if (!in_rounds) return failure(in_rounds.error());
    const auto mm = MmImage::read(fmt::format("{}/mm-{}.img", images, task.pid));
    if (!mm) return failure(mm.error());
    auto lazy = make_lazy(path, *pagemap, task.ranges, *in_rounds, mm->lazy_areas());
    if (!lazy) return failure(lazy.error());
    const auto own = std::find_if(shared.tasks.begin(), shared.tasks.end(),
                                  [&](const IndexedTask& other) { return other.pid == task.pid; });
    if (own != shared.tasks.end()) share(own->ranges, places, lazy->of_rounds);
    lazy->places.insert(lazy->places.end(), lazy->of_rounds.begin(), lazy->of_rounds.end());
    std::sort(lazy->places.begin(), lazy->places.end(),
              [](const PageRange& a, const PageRange& b) { return a.start < b.start; });
    task.ranges = std::move(lazy->places);
    found.pagemaps.emplace(task.pid, std::move(lazy->pagemap));
  }
  return found;
}

}  // namespace ppmr
