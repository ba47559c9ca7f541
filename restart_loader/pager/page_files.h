// The files that have the bytes of missing pages. A place is a position in one of them:
//
//   0            kFileSpanBytes      2 * kFileSpanBytes
//   | memory file  ...  | pages of a round  ...  | pages of another round  ...
//
// In a migration the first file is the memory file. The other files have the pages that pre-copy
// rounds have sent.
#pragma once

#include <memory>
#include <vector>

#include "restart_loader/pager/page_file.h"

namespace ppmr {

// Threads: all calls of add() come before any other call. Any thread may read, also during
// borrow(); only one may call borrow().
class PageFiles {
 public:
  static constexpr uint64_t kFileSpanBytes = uint64_t{1} << 48;

  // Returns the place of the file's first byte. The file has at most kFileSpanBytes.
  uint64_t add(std::shared_ptr<PageFile> file);

  // Like PageFile::read(), but at a place. All bytes must be in one file.
  Result<const std::byte*> read(uint64_t place, size_t length_bytes, std::byte* scratch) const;
  bool has_arrived(uint64_t place, size_t length_bytes) const;
  // Calls PageFile::borrow() for each file. The first file comes last, because it may arrive later
  // than the others.
  Status borrow(const PageFile::BorrowOptions& options);

 private:
  std::vector<std::shared_ptr<PageFile>> files_;
};

}  // namespace ppmr
