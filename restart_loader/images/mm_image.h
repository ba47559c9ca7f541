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
  // Reads the image. Errors: of the file system; EPROTO with the file and the fault for a file that
  // CRIU has not written.
  static Result<MmImage> read(const std::string& path);
  // Parses `bytes`, the content of the file at `path`. Errors: EPROTO as above.
  static Result<MmImage> parse(const std::string& path, std::string bytes);

  // Returns the memory that a lazy restore may leave out: private and anonymous, not locked and not
  // of huge pages. The ranges are in the order of their addresses; their offsets have no meaning.
  std::vector<PageRange> lazy_areas() const;
  // Adds to the set the addresses at which areas with shared pages must be split.
  void add_borders(const std::vector<PageRange>& shared, std::set<uint64_t>& borders) const;
  // Splits the areas with shared pages at the borders.
  void split(const std::vector<PageRange>& shared, const std::set<uint64_t>& borders);
  // Exempts large areas that are only reserved from the accounting of memory (MAP_NORESERVE).
  // CRIU maps each private area writable at first, and then the kernel counts it, or refuses an
  // area that is larger than the memory of the machine. Returns whether there is such an area.
  bool exempt_reservations();
  // Writes the image. Errors: of the file system.
  Status write(const std::string& path) const;

 private:
  explicit MmImage(criu::mm_entry mm) : mm_(std::move(mm)) {}
  criu::mm_entry mm_;
};

}  // namespace ppmr
