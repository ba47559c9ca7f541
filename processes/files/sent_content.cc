// Each digest describes a page as the target has it: the bytes up to the end of the file there, and
// zeros after that. The program may change the size of its file between any two system calls of a
// pass. So a pass sends an incomplete page only if it ends at size_bytes_, the end of the file at
// the target. At any other place, the target would keep the rest of the old page, and the digest
// would be wrong.
#include "processes/files/sent_content.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "processes/files/page_digest.h"

namespace ppmr {

SentContent::Read reader_of(int file, std::span<char> buffer) {
  return [=](uint64_t offset, uint64_t bytes_max) -> Result<std::span<const char>> {
    const size_t wanted = std::min<uint64_t>(buffer.size(), bytes_max);
    for (;;) {
      const ssize_t n = pread(file, buffer.data(), wanted, static_cast<off_t>(offset));
      if (n >= 0) return std::span<const char>(buffer.data(), static_cast<size_t>(n));
      if (errno != EINTR) return system_failure("read", "a file in memory");
    }
  };
}

Status SentContent::send_size(uint64_t size_bytes, const Sink& sink) {
  if (size_bytes == size_bytes_) return {};
  const file_record::Size size{tmpfs_, number_, size_bytes};
  if (Status put_it = sink(size); !put_it) return put_it;
  const bool has_shrunk = size_bytes < size_bytes_;
  size_bytes_ = size_bytes;
  digests_.resize((size_bytes + kFilePageBytes - 1) / kFilePageBytes, kHole);
  // The target has cut off a part of this page.
  if (has_shrunk && size_bytes % kFilePageBytes != 0 && digests_.back() != kHole) {
    digests_.back() = kUnknownPage;
  }
  return {};
}

// Returns the bytes without an incomplete last page, unless they end at size_bytes_.
std::span<const char> SentContent::whole_pages(uint64_t offset, std::span<const char> bytes) const {
  if (offset + bytes.size() == size_bytes_) return bytes;
  return bytes.first(bytes.size() - bytes.size() % kFilePageBytes);
}

// If the file becomes shorter during a pass, the pass ends, and the next pass sends the new size.
Result<uint64_t> SentContent::send_changed(int file, const Read& read, const Sink& sink) {
  sent_bytes_ = 0;
  for (uint64_t at = 0; at < size_bytes_;) {
    const off_t found = lseek(file, static_cast<off_t>(at), SEEK_DATA);
    if (found < 0 && errno != ENXIO) return system_failure("find the data of", "a file in memory");
    const uint64_t begin = found < 0 ? size_bytes_ : std::min<uint64_t>(found, size_bytes_);
    if (Status holes = send_hole(at, begin, sink); !holes) return failure(holes.error());
    if (begin == size_bytes_) break;
    const off_t hole = lseek(file, found, SEEK_HOLE);
    if (hole < 0 && errno == ENXIO) return sent_bytes_;  // the file has become shorter
    if (hole < 0) return system_failure("find the holes of", "a file in memory");
    const uint64_t end = std::min<uint64_t>(hole, size_bytes_);
    for (at = begin; at < end;) {
      const auto bytes = read(at, end - at);
      if (!bytes) return failure(bytes.error());
      const auto whole = whole_pages(at, *bytes);
      if (whole.empty()) return sent_bytes_;  // the file has become shorter
      if (Status put_it = send_bytes(at, whole, sink); !put_it) return failure(put_it.error());
      at += whole.size();
    }
  }
  return sent_bytes_;
}

// Holes begin and end at pages, except at the end of the file.
Status SentContent::send_hole(uint64_t begin, uint64_t end, const Sink& sink) {
  const uint64_t last = (end + kFilePageBytes - 1) / kFilePageBytes;
  for (uint64_t page = begin / kFilePageBytes; page < last;) {
    if (digests_[page] == kHole) {
      ++page;
      continue;
    }
    const uint64_t first = page;
    while (page < last && digests_[page] != kHole) digests_[page++] = kHole;
    const file_record::Hole hole{tmpfs_, number_, first * kFilePageBytes,
                                 (page - first) * kFilePageBytes};
    if (Status put_it = sink(hole); !put_it) return put_it;
  }
  return {};
}

// Sends the pages whose digests have changed. `offset` is a multiple of the size of a page.
Status SentContent::send_bytes(uint64_t offset, std::span<const char> bytes, const Sink& sink) {
  size_t first = 0;  // where the pages that are sent together begin
  const auto flush = [&](size_t end) -> Status {
    if (first == end) return {};
    sent_bytes_ += end - first;
    return sink(file_record::Data{tmpfs_, number_, offset + first,
                                  std::string(bytes.data() + first, end - first)});
  };
  for (size_t at = 0; at < bytes.size(); at += kFilePageBytes) {
    const auto page = bytes.subspan(at, std::min(kFilePageBytes, bytes.size() - at));
    const uint64_t digest = page_digest(std::as_bytes(page));
    uint64_t& known = digests_[(offset + at) / kFilePageBytes];
    if (digest == known) {
      if (Status put_it = flush(at); !put_it) return put_it;
      first = at + page.size();
    }
    known = digest;
  }
  return flush(bytes.size());
}

}  // namespace ppmr
