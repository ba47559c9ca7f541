// What was sent of the content of one file in memory: its size and the digest of each page. A
// further pass sends the pages that have another digest.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "processes/files/file_archive.h"

namespace ppmr {

// Threads: one.
class SentContent {
 public:
  using Sink = std::function<Status(const FileRecord&)>;
  // Returns the bytes at `offset`, at most `bytes_max` and at most kFileDataMaxBytes, a multiple of
  // the size of a page except at the end of the file; none: the file has become shorter. They are
  // valid until the next call.
  using Read = std::function<Result<std::span<const char>>(uint64_t offset, uint64_t bytes_max)>;

  SentContent() = default;
  // `tmpfs` and `number`: those of the file in its records.
  SentContent(uint32_t tmpfs, uint64_t number) : tmpfs_(tmpfs), number_(number) {}

  uint64_t number() const { return number_; }
  // Call it before the first pass, and when the size may have changed.
  Status send_size(uint64_t size_bytes, const Sink& sink);
  // Compares the content, `file` is open, and returns how many bytes were sent. Errors: of
  // lseek(2), the reader and the sink.
  Result<uint64_t> send_changed(int file, const Read& read, const Sink& sink);

 private:
  Status send_hole(uint64_t begin, uint64_t end, const Sink& sink);
  Status send_bytes(uint64_t offset, std::span<const char> bytes, const Sink& sink);

  uint32_t tmpfs_ = 0;
  uint64_t number_ = 0;
  uint64_t size_bytes_ = 0;
  uint64_t sent_bytes_ = 0;        // in this pass
  std::vector<uint64_t> digests_;  // of each page
};

// Reads with pread(2) into a buffer, which the reader uses as long as it lives.
SentContent::Read reader_of(int file, std::span<char> buffer);

}  // namespace ppmr
