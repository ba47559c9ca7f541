// The files that have the bytes of missing pages. A place is a position in one of them:
//
//   0            kFileSpanBytes      2 * kFileSpanBytes
//   | memory file  ...  | pages of a round  ...  | pages of another round  ...
//
// In the files of one migration, the memory file is the first. The others have the pages that
// rounds of pre-copy have sent.
#pragma once

#include <memory>
#include <vector>

#include "restart_loader/pager/page_file.h"

namespace ppmr {

// Threads: add() before any other; the reads by any, also during borrow(); borrow() by one.
class PageFiles {
 public:
  static constexpr uint64_t kFileSpanBytes = uint64_t{1} << 48;

  // Returns the place of the file's first byte. The file has at most kFileSpanBytes.
  uint64_t add(std::shared_ptr<PageFile> file);

  // As those of PageFile. The bytes are in one file.
  Result<const std::byte*> read(uint64_t place, size_t length_bytes, std::byte* scratch) const;
  bool has_arrived(uint64_t place, size_t length_bytes) const;
  // Calls PageFile::borrow() for each file, the first one last: it may arrive later.
  Status borrow(const PageFile::BorrowOptions& options);

 private:
  std::vector<std::shared_ptr<PageFile>> files_;
};

}  // namespace ppmr
