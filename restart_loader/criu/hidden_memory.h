// The memory of a dumped process whose pages the library in CRIU hides from CRIU.
//
// A lazy dump lists every page of private anonymous memory and puts it into a pipe, which costs 50
// to 100 ms for each GiB while the process is frozen. No program reads these pipes, because ppmr
// has its own list of the pages (processes/memory/live_memory.h). So the library (criu_library.h)
// makes CRIU find no pages there.
//
// As a part of the library, this class uses no C++ runtime library. Threads: one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "processes/memory/page_scan.h"

namespace ppmr {

class HiddenMemory {
 public:
  struct Range {
    uint64_t start;
    uint64_t end;
  };

  HiddenMemory() = default;
  ~HiddenMemory();
  HiddenMemory(const HiddenMemory&) = delete;
  HiddenMemory& operator=(const HiddenMemory&) = delete;

  // `maps`: /proc/PID/maps, open. Returns false, and hides nothing, if it cannot be read.
  bool read(int maps);
  void forget() { count_ = 0; }
  size_t count() const { return count_; }

  // Executes the scan of `pagemap`, and leaves out hidden pages. Returns as the ioctl does.
  int scan(int pagemap, PageScan& scan) const;
  // Reads `bytes` of /proc/PID/pagemap, 8 for each page. The entries of hidden pages are 0. Returns
  // as pread(2) does.
  ssize_t pread(int pagemap, void* entries, size_t bytes, off_t at) const;

 private:
  bool add(uint64_t start, uint64_t end);
  // The first range that ends behind the address; one past the last if there is none.
  const Range* next(uint64_t address) const;

  Range* ranges_ = nullptr;  // sorted by address, not overlapping
  size_t count_ = 0;
  size_t room_ = 0;
};

// Returns whether `status`, the text of /proc/PID/status, is of a process that `tracer` traces and
// that has no locked memory. Other memory must stay visible: CRIU also reads the list of its own
// pages and uses it for other dumps, and CRIU itself dumps locked memory.
bool may_hide(const char* status, size_t length, pid_t tracer);

}  // namespace ppmr
