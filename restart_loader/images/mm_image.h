// The image mm-PID.img of CRIU: the virtual memory areas of a process.
//
// CRIU lets a child share pages with its parent if both have an area with the same start and end.
// Areas that the kernel has merged with new neighbours differ, although they have shared pages:
//
//   parent  |######|          parent  |######|
//   child   |######|..|  ->   child   |######|..|   two areas that the kernel may merge again
//                ^one area
//
// Threads: one.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {

class MmImage {
 public:
  // Errors: of the file system; EPROTO with the file and the fault for a file that CRIU has not
  // written.
  static Result<MmImage> read(const std::string& path);
  // The same for the `bytes` of the file at `path`. Errors: EPROTO.
  static Result<MmImage> parse(const std::string& path, std::string bytes);

  // Memory that a lazy restore may leave out: private and anonymous, neither locked nor of huge
  // pages. By address; the offsets have no meaning.
  std::vector<PageRange> lazy_areas() const;
  // Adds where areas are to be split that have shared pages: addresses.
  void add_borders(const std::vector<PageRange>& shared, std::set<uint64_t>& borders) const;
  // Splits the areas with shared pages.
  void split(const std::vector<PageRange>& shared, const std::set<uint64_t>& borders);
  // Errors: of the file system.
  Status write(const std::string& path) const;

 private:
  explicit MmImage(criu::mm_entry mm) : mm_(std::move(mm)) {}
  criu::mm_entry mm_;
};

}  // namespace ppmr
