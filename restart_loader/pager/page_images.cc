#include "restart_loader/pager/page_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "buffer_pool/whole_file.h"
#include "restart_loader/pager/pagemap.pb.h"

namespace ppmr {
namespace {

// criu/include/magic.h
constexpr uint32_t kImageMagic = 0x54564319;
constexpr uint32_t kPagemapMagic = 0x56084025;
// criu/include/pagemap.h
constexpr uint32_t kLazy = 1U << 1;
constexpr uint32_t kPresent = 1U << 2;

// Splits an image into its messages: each follows its length.
class Messages {
 public:
  explicit Messages(std::string_view bytes) : rest_(bytes) {}

  std::optional<uint32_t> number() {
    uint32_t value = 0;
    if (rest_.size() < sizeof(value)) return std::nullopt;
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  template <typename Message>
  bool read(Message& message) {
    const auto length = number();
    if (!length || *length > rest_.size()) return false;
    const bool parsed = message.ParseFromArray(rest_.data(), static_cast<int>(*length));
    rest_.remove_prefix(*length);
    return parsed;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

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
  for (IndexedTask& task : index->tasks) images.indexed_[task.pid] = std::move(task.ranges);
  for (const auto& [pid, ranges] : images.indexed_) {
    if (const auto task = images.of(pid); !task) return failure(task.error());
  }
  return images;
}

Result<TaskImages> PageImages::of(pid_t pid) const {
  const std::string path = fmt::format("{}/pagemap-{}.img", directory_, pid);
  const auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  const auto damaged = [&](const std::string& what) {
    return failure(EPROTO, fmt::format("{}: not an image that CRIU has written: {}", path, what));
  };
  Messages messages(*bytes);
  if (messages.number() != kImageMagic || messages.number() != kPagemapMagic) {
    return damaged("wrong magic number");
  }
  criu::pagemap_head head;
  if (!messages.read(head)) return damaged("no head");
  const auto indexed = indexed_.find(pid);
  TaskImages images;
  bool in_images = false;
  uint64_t offset = 0;
  uint64_t last_end = 0;
  while (!messages.at_end()) {
    criu::pagemap_entry entry;
    if (!messages.read(entry)) return damaged("an entry is cut off");
    const uint64_t start = entry.vaddr();
    const uint64_t pages = entry.has_nr_pages() ? entry.nr_pages() : entry.compat_nr_pages();
    if (start % kPageBytes != 0 || start < last_end || start > kAddressMax || pages == 0 ||
        pages > (kAddressMax - start) / kPageBytes) {
      return damaged(fmt::format("wrong entry of {} pages at {:#x}", pages, start));
    }
    last_end = start + pages * kPageBytes;
    const bool present = (entry.flags() & kPresent) != 0;
    if ((entry.flags() & kLazy) != 0 && present) {
      in_images = true;
      images.ranges.push_back({start, last_end, offset});
    } else if ((entry.flags() & kLazy) != 0 && indexed == indexed_.end()) {
      return damaged("its pages were left to a page server");
    } else if ((entry.flags() & kLazy) != 0 &&
               !find_places(indexed->second, start, last_end, images.ranges)) {
      return failure(EPROTO, fmt::format("the page index lacks memory of process {} between {:#x} "
                                         "and {:#x}, which {} lists",
                                         pid, start, last_end, path));
    }
    if (present) offset += last_end - start;
  }
  if (images.ranges.empty()) return images;
  if (in_images && memory_) return damaged("it includes memory that is also in a memory file");
  images.pages = memory_;
  if (memory_) return images;
  auto pages = PageFile::open(fmt::format("{}/pages-{}.img", directory_, head.pages_id()));
  if (!pages) return failure(pages.error());
  images.pages = std::move(*pages);
  return images;
}

}  // namespace ppmr
