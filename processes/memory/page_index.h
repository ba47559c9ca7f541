// The page index of a frozen tree lists the pages of its processes that are in a memory file, and
// their places.
//
//  addresses of process 17   |####|  |##|    |####|        addresses of its child 18  |####|  |##|
//  memory file               |####|##|####|##|             the child's ####, shared with 17: the
//                                                          same place in the file
//
// A page that several processes share is in the file once. After rounds of a live move the file
// also has older copies of pages, which are in no range. An index for a page reader covers the
// whole file in order: each range begins at or before the end of the ranges before it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kAddressMax = uint64_t{1} << 56;  // limit of five-level page tables
// The name of the index in the directory of CRIU's images.
inline constexpr const char* kPageIndexFile = "memory-index";

// A range of addresses of a process, at page boundaries, and the place of its bytes in a file.
struct PageRange {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;

  uint64_t bytes() const { return end - start; }
};

struct IndexedTask {
  pid_t pid = 0;                  // in the process's own pid namespace
  pid_t host_pid = 0;             // in the source's pid namespace
  std::vector<PageRange> ranges;  // sorted by address, not overlapping
  uint64_t host_start_time = 0;   // see ProcessIdentity; 0: unknown
};

struct PageIndex {
  uint64_t memory_bytes = 0;  // size of the memory file
  std::vector<IndexedTask> tasks;
};

// Appends the parts of `ranges` (sorted by address, not overlapping) that are in [start, end).
// Returns false if a byte of [start, end) is in no range.
bool find_places(const std::vector<PageRange>& ranges, uint64_t start, uint64_t end,
                 std::vector<PageRange>& places);

std::string to_bytes(const PageIndex& index);
// Errors: EPROTO, with the fault, for bytes that to_bytes() did not produce.
Result<PageIndex> parse_page_index(std::string_view bytes);

// Errors: those of the file system; EPROTO. The message names the file.
Status write_page_index(const std::string& path, const PageIndex& index);
Result<PageIndex> read_page_index(const std::string& path);

}  // namespace ppmr
