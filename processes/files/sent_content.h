// Keeps the size and the page digests of what was sent of one file in memory. A further pass sends
// only the pages whose digests have changed.
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
  // Returns the bytes at `offset`: at most `bytes_max`, at most kFileDataMaxBytes, and a multiple
  // of the page size except at the end of the file. An empty result, or one that ends within a
  // page, means that the file has become shorter. The bytes are valid until the next call.
  using Read = std::function<Result<std::span<const char>>(uint64_t offset, uint64_t bytes_max)>;

  SentContent() = default;
  // `tmpfs` and `number`: as in the records of the file.
  SentContent(uint32_t tmpfs, uint64_t number) : tmpfs_(tmpfs), number_(number) {}

  uint64_t number() const { return number_; }
  // Call it before the first pass, and when the size may have changed.
  Status send_size(uint64_t size_bytes, const Sink& sink);
  // Sends the pages whose digests have changed, and returns how many bytes that was. `file`: open
  // for reading. Errors: of lseek(2), the reader and the sink.
  Result<uint64_t> send_changed(int file, const Read& read, const Sink& sink);

 private:
  std::span<const char> whole_pages(uint64_t offset, std::span<const char> bytes) const;
  Status send_hole(uint64_t begin, uint64_t end, const Sink& sink);
  Status send_bytes(uint64_t offset, std::span<const char> bytes, const Sink& sink);

  uint32_t tmpfs_ = 0;
  uint64_t number_ = 0;
  uint64_t size_bytes_ = 0;
  uint64_t sent_bytes_ = 0;        // in this pass
  std::vector<uint64_t> digests_;  // of each page, as the target has it
};

// Returns a reader that uses pread(2) and `buffer`. The buffer must live as long as the reader.
SentContent::Read reader_of(int file, std::span<char> buffer);

}  // namespace ppmr
