// Pages that CRIU has dumped for several processes, with the same bytes at the same address.
//
// A lazy dump leaves private anonymous memory out. CRIU still writes, for each process, the pages
// of private mappings of files that were changed: the data of programs and libraries. A child has
// most of them from its parent, 1.7 MB of a Python program. Images that are made for the restore
// need them once:
//
//   pages-1.img   |a|b|c|        process 1: a b c
//   pages-2.img   |a|d|c|        process 2: a and c of process 1, d of its own
//
// Rejected: to know equal pages by their frames, as the page index does. The source would have to
// look for them while the tree is frozen; to compare the bytes takes less time than to read them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/pager/page_file.h"

namespace ppmr {

// Pages of a process.
struct DumpedPart {
  uint64_t start = 0;  // addresses
  uint64_t end = 0;
  size_t owner = 0;   // the process whose pages file has the bytes
  uint64_t from = 0;  // where in that file
};

// The pages files: their bytes are borrowed if their mount lends them, so that many small reads
// cost no round trip. Not all are open at a time: a tree may have more processes than a process may
// have open files. Threads: one.
class DumpedFiles {
 public:
  explicit DumpedFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  // Fast for the files that were opened last. Errors: of the file system.
  Result<std::shared_ptr<PageFile>> open(size_t owner);

 private:
  struct Opened {
    size_t owner = 0;
    std::shared_ptr<PageFile> file;
  };

  std::vector<std::string> paths_;
  std::vector<Opened> opened_;  // the last used one is the last
};

// For each process its present pages, by address. `files`: in the order of `pagemaps`. Of equal
// pages, the first process that has some at that address owns the bytes. Errors: of the file
// system.
Result<std::vector<std::vector<DumpedPart>>> find_equal_pages(
    const std::vector<const Pagemap*>& pagemaps, DumpedFiles& files);

}  // namespace ppmr
