#include "processes/memory/page_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "processes/memory/page_index.pb.h"

namespace ppmr {
namespace {

constexpr uint64_t kPagesMax = kAddressMax / kPageBytes;

tl::unexpected<Error> damaged(const std::string& what) {
  return failure(EPROTO, "not a page index of ppmr: " + what);
}

// Reads the ranges of one task. `next` is the page of the file that follows the previous range.
Status read_ranges(const pages::Task& packed, uint64_t file_pages, int64_t& next,
                   std::vector<PageRange>& ranges) {
  if (packed.gap_size() != packed.pages_size() || packed.gap_size() != packed.jump_size()) {
    return damaged("a task has lists of different lengths");
  }
  uint64_t at = 0;
  for (int i = 0; i < packed.gap_size(); ++i) {
    const uint64_t gap = packed.gap(i);
    const uint64_t pages = packed.pages(i);
    const int64_t jump = packed.jump(i);
    if (gap > kPagesMax - at || pages == 0 || pages > kPagesMax - at - gap) {
      return damaged("an address is out of range");
    }
    const auto limit = static_cast<int64_t>(kPagesMax);
    if (jump < -limit || jump > limit || next + jump < 0 ||
        static_cast<uint64_t>(next + jump) > file_pages ||
        pages > file_pages - static_cast<uint64_t>(next + jump)) {
      return damaged("a range is not in the memory file");
    }
    at += gap;
    next += jump;
    ranges.push_back(
        {at * kPageBytes, (at + pages) * kPageBytes, static_cast<uint64_t>(next) * kPageBytes});
    at += pages;
    next += static_cast<int64_t>(pages);
  }
  return {};
}

}  // namespace

bool find_places(const std::vector<PageRange>& ranges, uint64_t start, uint64_t end,
                 std::vector<PageRange>& places) {
  auto range = std::upper_bound(ranges.begin(), ranges.end(), start,
                                [](uint64_t at, const PageRange& item) { return at < item.end; });
  bool is_whole = true;
  while (start < end) {
    if (range == ranges.end() || range->start >= end) return false;
    is_whole = is_whole && range->start <= start;
    start = std::max(start, range->start);
    const uint64_t stop = std::min(end, range->end);
    places.push_back({start, stop, range->offset + (start - range->start)});
    start = stop;
    ++range;
  }
  return is_whole;
}

std::string to_bytes(const PageIndex& index) {
  pages::Index packed;
  packed.set_pages(index.memory_bytes / kPageBytes);
  uint64_t next = 0;
  for (const IndexedTask& task : index.tasks) {
    pages::Task& packed_task = *packed.add_task();
    packed_task.set_pid(task.pid);
    packed_task.set_host_pid(task.host_pid);
    packed_task.set_host_start_time(task.host_start_time);
    uint64_t at = 0;
    for (const PageRange& range : task.ranges) {
      packed_task.add_gap((range.start - at) / kPageBytes);
      packed_task.add_pages(range.bytes() / kPageBytes);
      packed_task.add_jump((static_cast<int64_t>(range.offset) - static_cast<int64_t>(next)) /
                           static_cast<int64_t>(kPageBytes));
      at = range.end;
      next = range.offset + range.bytes();
    }
  }
  return packed.SerializeAsString();
}

Result<PageIndex> parse_page_index(std::string_view bytes) {
  pages::Index packed;
  if (!packed.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return damaged("it cannot be parsed");
  }
  if (packed.pages() > kPagesMax) return damaged("the memory file is too large");
  PageIndex index;
  index.memory_bytes = packed.pages() * kPageBytes;
  int64_t next = 0;
  for (const pages::Task& packed_task : packed.task()) {
    IndexedTask task{packed_task.pid(), packed_task.host_pid(), {}, packed_task.host_start_time()};
    if (task.pid <= 0 || task.host_pid <= 0) return damaged("a task has no pid");
    if (Status read = read_ranges(packed_task, packed.pages(), next, task.ranges); !read) {
      return failure(read.error());
    }
    index.tasks.push_back(std::move(task));
  }
  return index;
}

Status write_page_index(const std::string& path, const PageIndex& index) {
  const std::string bytes = to_bytes(index);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return system_failure("create", path);
  return write_all(file, std::as_bytes(std::span(bytes)), 0, path);
}

Result<PageIndex> read_page_index(const std::string& path) {
  const auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  auto index = parse_page_index(*bytes);
  if (!index) return failure(index.error().errno_value, path + ": " + index.error().message);
  return index;
}

}  // namespace ppmr
