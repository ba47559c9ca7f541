#include "restart_loader/images/pagemap_image.h"

#include <fmt/format.h>

#include "base/whole_file.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

// See criu/include/magic.h.
constexpr uint32_t kPagemapMagic = 0x56084025;
// See criu/include/pagemap.h.
constexpr uint32_t kInParent = 1U << 0;
constexpr uint32_t kLazy = 1U << 1;
constexpr uint32_t kPresent = 1U << 2;

}  // namespace

Result<Pagemap> read_pagemap(const std::string& path) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  return parse_pagemap(path, std::move(*bytes));
}

Result<Pagemap> parse_pagemap(const std::string& path, std::string bytes) {
  auto image = ImageReader::of(path, std::move(bytes), kPagemapMagic);
  if (!image) return failure(image.error());
  criu::pagemap_head head;
  if (Status read = image->read(head); !read) return failure(read.error());
  Pagemap pagemap{head.pages_id(), {}};
  uint64_t last_end = 0;
  while (!image->at_end()) {
    criu::pagemap_entry entry;
    if (Status read = image->read(entry); !read) return failure(read.error());
    const uint64_t start = entry.vaddr();
    const uint64_t pages = entry.has_nr_pages() ? entry.nr_pages() : entry.compat_nr_pages();
    if (start % kPageBytes != 0 || start < last_end || start > kAddressMax || pages == 0 ||
        pages > (kAddressMax - start) / kPageBytes) {
      return image->damaged(fmt::format("wrong entry of {} pages at {:#x}", pages, start));
    }
    last_end = start + pages * kPageBytes;
    const uint32_t flags = entry.flags();
    pagemap.entries.push_back(
        {start, last_end, (flags & kLazy) != 0, (flags & kPresent) != 0, (flags & kInParent) != 0});
  }
  return pagemap;
}

Status write_pagemap(const std::string& path, const Pagemap& pagemap) {
  ImageWriter image(kPagemapMagic);
  criu::pagemap_head head;
  head.set_pages_id(pagemap.pages_id);
  image.add(head);
  criu::pagemap_entry message;
  for (const PagemapEntry& entry : pagemap.entries) {
    const uint64_t pages = entry.bytes() / kPageBytes;
    message.set_vaddr(entry.start);
    message.set_compat_nr_pages(static_cast<uint32_t>(pages));
    message.set_nr_pages(pages);
    message.set_flags((entry.lazy ? kLazy : 0) | (entry.present ? kPresent : 0) |
                      (entry.in_parent ? kInParent : 0));
    image.add(message);
  }
  return image.write(path);
}

}  // namespace ppmr
