// Finds pages that CRIU has dumped for several processes, with the same bytes at the same address.
//
// A lazy dump leaves private anonymous memory out. CRIU still writes, for each process, the changed
// pages of private mappings of files: the data of programs and libraries. A child has most of these
// pages from its parent; in a Python program they are 1.7 MB. The images that the pager makes for
// the restore need these pages once:
//
//   pages-1.img   |a|b|c|        process 1: a b c
//   pages-2.img   |a|d|c|        process 2: a and c of process 1, d of its own
//
// Rejected: finding equal pages by their frames, as the page index does. The source would have to
// do that while the tree is frozen. Comparing the bytes takes less time than reading them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/pager/page_file.h"

namespace ppmr {

// A range of pages of a process.
struct DumpedPart {
  uint64_t start = 0;  // addresses
  uint64_t end = 0;
  size_t owner = 0;   // the process whose pages file has the bytes
  uint64_t from = 0;  // position in the owner's pages file
};

// The pages files. The bytes are borrowed if the mount lends them, so that many small reads cost no
// round trip. Only some files are open at a time: a tree may have more processes than a process may
// have open files. Threads: one.
class DumpedFiles {
 public:
  explicit DumpedFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  // Opens the pages file of process `owner`, or returns it if it is still open. Errors: of the file
  // system.
  Result<std::shared_ptr<PageFile>> open(size_t owner);

 private:
  struct Opened {
    size_t owner = 0;
    std::shared_ptr<PageFile> file;
  };

  std::vector<std::string> paths_;
  std::vector<Opened> opened_;  // in the order of their last use, oldest first
};

// Returns for each process its present pages, by address. `files` is in the order of `pagemaps`. If
// several processes have equal pages at an address, the first of these processes owns the bytes.
// Errors: of the file system.
Result<std::vector<std::vector<DumpedPart>>> find_equal_pages(
    const std::vector<const Pagemap*>& pagemaps, DumpedFiles& files);

}  // namespace ppmr
