#include "restart_loader/pager/shared_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/whole_file.h"
#include "restart_loader/images/mm_image.h"
#include "restart_loader/pager/equal_pages.h"

namespace ppmr {
namespace {

// The number of the new pages file, which all tasks share. CRIU numbers its own pages files from 1.
constexpr uint32_t kPagesId = 1'000'000'000;
constexpr uint64_t kCopyBytes = 1 << 20;
// The owner of a piece that several processes share.
constexpr size_t kSharedByAll = std::numeric_limits<size_t>::max();

// Returns the place of the byte at address 0. The value may wrap around.
uint64_t origin_of(const PageRange& range) { return range.offset - range.start; }

// Calls visit(part, is_shared) for each part of the ranges.
template <typename Visit>
void for_each_part(const std::vector<PageRange>& ranges, const std::vector<PageRange>& shared,
                   Visit&& visit) {
  for (const PageRange& range : ranges) {
    uint64_t at = range.start;
    const auto emit = [&](uint64_t end, bool is_shared) {
      if (at < end) visit(PageRange{at, end, origin_of(range) + at}, is_shared);
      at = std::max(at, end);
    };
    auto next = std::upper_bound(shared.begin(), shared.end(), range.start,
                                 [](uint64_t from, const PageRange& s) { return from < s.end; });
    for (; next != shared.end() && next->start < range.end; ++next) {
      if (origin_of(*next) != origin_of(range)) continue;
      emit(next->start, false);
      emit(std::min(next->end, range.end), true);
    }
    emit(range.end, false);
  }
}

std::vector<PageRange> parts(const std::vector<PageRange>& ranges,
                             const std::vector<PageRange>& shared, bool wanted) {
  std::vector<PageRange> found;
  for_each_part(ranges, shared, [&](const PageRange& part, bool is_shared) {
    if (is_shared == wanted) found.push_back(part);
  });
  return found;
}

struct TaskPages {
  pid_t pid = 0;
  Pagemap pagemap;
  MmImage mm;
  std::vector<PageRange> shared;
  std::vector<DumpedPart> dumped;  // the owners are tasks
};

std::string pages_name(const Pagemap& pagemap) {
  return fmt::format("pages-{}.img", pagemap.pages_id);
}

Result<std::vector<TaskPages>> read_tasks(const RestoreImages& images, const PageIndex& index,
                                          const std::vector<PageRange>& shared,
                                          const std::map<pid_t, Pagemap>& pagemaps) {
  std::vector<TaskPages> tasks;
  for (const IndexedTask& task : index.tasks) {
    auto own = shared_parts(task.ranges, shared);
    if (own.empty()) continue;
    auto mm = MmImage::read(images.path_of(fmt::format("mm-{}.img", task.pid)));
    if (!mm) return failure(mm.error());
    tasks.push_back({task.pid, pagemaps.at(task.pid), std::move(*mm), std::move(own), {}});
  }
  std::set<uint64_t> borders;
  for (const TaskPages& task : tasks) task.mm.add_borders(shared, borders);
  for (TaskPages& task : tasks) task.mm.split(shared, borders);
  return tasks;
}

DumpedFiles files_of(const std::vector<TaskPages>& tasks, const RestoreImages& images) {
  std::vector<std::string> paths;
  for (const TaskPages& task : tasks) {
    paths.push_back(images.path_of(pages_name(task.pagemap)));
  }
  return DumpedFiles(std::move(paths));
}

Status find_dumped(std::vector<TaskPages>& tasks, DumpedFiles& files) {
  std::vector<const Pagemap*> pagemaps;
  for (const TaskPages& task : tasks) pagemaps.push_back(&task.pagemap);
  auto parts = find_equal_pages(pagemaps, files);
  if (!parts) return failure(parts.error());
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].dumped = std::move((*parts)[i]);
  return {};
}

// A range of bytes in the new pages file.
struct Piece {
  uint64_t start = 0;  // address
  uint64_t end = 0;
  size_t owner = kSharedByAll;  // the process whose pages file has the bytes
  uint64_t from = 0;            // a place (kSharedByAll), or a position in the owner's pages file
  uint64_t offset = 0;          // in the new pages file
};

// Appends the piece, cut at the borders.
void add_cut(Piece piece, const std::set<uint64_t>& borders, std::vector<Piece>& pieces) {
  for (auto border = borders.upper_bound(piece.start);
       border != borders.end() && *border < piece.end; ++border) {
    pieces.push_back({piece.start, *border, piece.owner, piece.from, 0});
    piece.from += *border - piece.start;
    piece.start = *border;
  }
  pieces.push_back(piece);
}

// Returns the pieces in the order of the pages file. Pieces that overlap begin and end together, so
// every task finds its pages in the order of their addresses.
std::vector<Piece> lay_out(const std::vector<TaskPages>& tasks,
                           const std::vector<PageRange>& shared) {
  std::set<uint64_t> borders;
  for (const TaskPages& task : tasks) {
    for (const DumpedPart& part : task.dumped) borders.insert({part.start, part.end});
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (const DumpedPart& part : tasks[i].dumped) {
      if (part.owner == i) add_cut({part.start, part.end, i, part.from, 0}, borders, pieces);
    }
  }
  for (const PageRange& range : shared) {
    add_cut({range.start, range.end, kSharedByAll, range.offset, 0}, borders, pieces);
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.start, a.owner) < std::pair(b.start, b.owner);
  });
  uint64_t offset = 0;
  for (Piece& piece : pieces) {
    piece.offset = offset;
    offset += piece.end - piece.start;
  }
  return pieces;
}

// Writes the entries of one task, in the order of the pages file.
class PagemapWriter {
 public:
  PagemapWriter(const TaskPages& task, const std::vector<Piece>& pieces)
      : task_(task), pieces_(pieces) {
    pagemap_.pages_id = kPagesId;
  }

  Pagemap write() {
    auto part = task_.dumped.begin();
    for (const PagemapEntry& entry : task_.pagemap.entries) {
      entry_begins_ = pagemap_.entries.size();
      if (entry.present) {
        for (; part != task_.dumped.end() && part->start < entry.end; ++part) {
          add_pieces(part->start, part->end, part->owner);
        }
      } else if (entry.lazy) {
        add_lazy(entry);
      } else {
        pagemap_.entries.push_back(entry);
      }
    }
    return std::move(pagemap_);
  }

 private:
  void add_lazy(const PagemapEntry& entry) {
    uint64_t at = entry.start;
    const auto add_lazy_until = [&](uint64_t end) {
      if (at < end) pagemap_.entries.push_back({at, end, /*lazy=*/true, false, false});
    };
    auto part = std::upper_bound(task_.shared.begin(), task_.shared.end(), at,
                                 [](uint64_t from, const PageRange& s) { return from < s.end; });
    for (; part != task_.shared.end() && part->start < entry.end; ++part) {
      const uint64_t start = std::max(at, part->start);
      add_lazy_until(start);
      at = std::min(entry.end, part->end);
      add_pieces(start, at, kSharedByAll);
    }
    add_lazy_until(entry.end);
  }

  // Adds the pieces of `owner` that cover [start, end).
  void add_pieces(uint64_t start, uint64_t end, size_t owner) {
    for (; next_ < pieces_.size() && pieces_[next_].start < end; ++next_) {
      const Piece& piece = pieces_[next_];
      if (piece.owner != owner || piece.end <= start) continue;
      const uint64_t first = std::max(start, piece.start);
      const uint64_t last = std::min(end, piece.end);
      add_present(first, last, piece.offset + (first - piece.start));
      if (last < piece.end) return;  // a later part may be in this piece
    }
  }

  void add_present(uint64_t first, uint64_t last, uint64_t offset) {
    auto& entries = pagemap_.entries;
    if (offset == offset_ && entries.size() > entry_begins_ && entries.back().present &&
        !entries.back().lazy && entries.back().end == first) {
      entries.back().end = last;
    } else {
      // CRIU skips lazy entries, and skips their bytes if they are present. CRIU requires sorted
      // addresses.
      if (offset > offset_) {
        entries.push_back({first, first + (offset - offset_), true, true, false});
      }
      entries.push_back({first, last, false, true, false});
    }
    offset_ = offset + (last - first);
  }

  const TaskPages& task_;
  const std::vector<Piece>& pieces_;
  size_t next_ = 0;
  size_t entry_begins_ = 0;  // number of new entries before those of the present old entry
  uint64_t offset_ = 0;      // how far this task has read the pages file
  Pagemap pagemap_;
};

// `path`: of `to`, for errors. `scratch` has room for kCopyBytes.
template <typename File>
Status copy_bytes(const File& from, const Piece& piece, const UniqueFd& to, const std::string& path,
                  std::vector<std::byte>& scratch) {
  const uint64_t length = piece.end - piece.start;
  for (uint64_t done = 0; done < length; done += kCopyBytes) {
    const size_t part = std::min(length - done, kCopyBytes);
    const auto bytes = from.read(piece.from + done, part, scratch.data());
    if (!bytes) return failure(bytes.error());
    if (Status written = write_all(to, {*bytes, part}, piece.offset + done, path); !written) {
      return written;
    }
  }
  return {};
}

Status write_pages(const std::vector<Piece>& pieces, DumpedFiles& dumped, const PageFile& shared,
                   const std::string& path) {
  const UniqueFd to(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!to) return system_failure("create", path);
  std::vector<const Piece*> by_owner;
  for (const Piece& piece : pieces) by_owner.push_back(&piece);
  // Begins with the last file, because the files that were opened last are still open.
  std::sort(by_owner.begin(), by_owner.end(), [](const Piece* a, const Piece* b) {
    return std::pair(b->owner, a->offset) < std::pair(a->owner, b->offset);
  });
  // Allocated once, because there are many small pieces.
  std::vector<std::byte> scratch(kCopyBytes);
  for (const Piece* piece : by_owner) {
    Status copied;
    if (piece->owner == kSharedByAll) {
      copied = copy_bytes(shared, *piece, to, path, scratch);
    } else {
      const auto own = dumped.open(piece->owner);
      copied = own ? copy_bytes(**own, *piece, to, path, scratch) : failure(own.error());
    }
    if (!copied) return copied;
  }
  return {};
}

}  // namespace

std::vector<PageRange> shared_ranges(const PageIndex& index, const Parents& parents) {
  std::map<pid_t, const std::vector<PageRange>*> ranges_of;
  for (const IndexedTask& task : index.tasks) ranges_of[task.pid] = &task.ranges;
  struct Border {
    uint64_t address;
    uint64_t origin;
    int users;  // number of users that begin (or end, if negative) here
  };
  std::vector<Border> borders;
  for (const IndexedTask& task : index.tasks) {
    const auto parent = parents.find(task.pid);
    if (parent == parents.end() || !ranges_of.contains(parent->second)) continue;
    for (const PageRange& part : shared_parts(task.ranges, *ranges_of[parent->second])) {
      borders.push_back({part.start, origin_of(part), 1});
      borders.push_back({part.end, origin_of(part), -1});
    }
  }
  std::sort(borders.begin(), borders.end(),
            [](const Border& a, const Border& b) { return a.address < b.address; });
  std::map<uint64_t, int> users;  // users at the present address; key: origin
  std::vector<PageRange> found;
  uint64_t origin = 0;  // origin of the last range in `found`, while that range continues
  bool goes_on = false;
  for (auto border = borders.begin(); border != borders.end();) {
    const uint64_t at = border->address;
    if (goes_on) found.back().end = at;
    for (; border != borders.end() && border->address == at; ++border) {
      int& count = users[border->origin];
      count += border->users;
      if (count == 0) users.erase(border->origin);
    }
    if (goes_on && users.contains(origin)) continue;
    goes_on = !users.empty();
    if (!goes_on) continue;
    origin = users.begin()->first;
    found.push_back({at, at, origin + at});
  }
  return found;
}

std::vector<PageRange> shared_parts(const std::vector<PageRange>& ranges,
                                    const std::vector<PageRange>& shared) {
  return parts(ranges, shared, true);
}

std::vector<PageRange> unshared_parts(const std::vector<PageRange>& ranges,
                                      const std::vector<PageRange>& shared) {
  return parts(ranges, shared, false);
}

Status write_shared_pages(RestoreImages& images, const PageIndex& index,
                          const std::vector<PageRange>& shared, const PageFile& file,
                          const std::map<pid_t, Pagemap>& pagemaps) {
  auto tasks = read_tasks(images, index, shared, pagemaps);
  if (!tasks) return failure(tasks.error());
  DumpedFiles dumped = files_of(*tasks, images);
  if (Status found = find_dumped(*tasks, dumped); !found) return failure(found.error());
  const std::vector<Piece> pieces = lay_out(*tasks, shared);
  if (!pieces.empty()) {
    const auto to = images.path_for_change(fmt::format("pages-{}.img", kPagesId));
    if (!to) return failure(to.error());
    if (Status copied = write_pages(pieces, dumped, file, *to); !copied) return copied;
  }
  for (const TaskPages& task : *tasks) {
    const auto pagemap = images.path_for_change(fmt::format("pagemap-{}.img", task.pid));
    const auto mm = images.path_for_change(fmt::format("mm-{}.img", task.pid));
    if (!pagemap || !mm) return failure((pagemap ? mm : pagemap).error());
    Status written = write_pagemap(*pagemap, PagemapWriter(task, pieces).write());
    if (written) written = task.mm.write(*mm);
    if (!written) return written;
    images.note_unneeded(pages_name(task.pagemap));
  }
  return {};
}

}  // namespace ppmr
