// The memory of a dumped process whose pages CRIU is not to see.
//
// A lazy dump lists every page of private anonymous memory and puts it into a pipe, which costs 50
// to 100 ms for each GiB while the process is frozen. Nobody reads these pipes: ppmr has a list of
// the pages of its own (processes/memory/live_memory.h). So CRIU, in the library that it loads
// (criu_library.h), finds no pages there.
//
// A part of that library: without the C++ runtime library. Threads: one.
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

  // Executes the scan of `pagemap` without what is hidden. Returns as the ioctl does.
  int scan(int pagemap, PageScan& scan) const;
  // Reads `bytes` of /proc/PID/pagemap, 8 for each page, without what is hidden. Returns as
  // pread(2) does.
  ssize_t pread(int pagemap, void* entries, size_t bytes, off_t at) const;

 private:
  bool add(uint64_t start, uint64_t end);
  // The first range that ends behind the address; one past the last if there is none.
  const Range* next(uint64_t address) const;

  Range* ranges_ = nullptr;  // by address, not overlapping
  size_t count_ = 0;
  size_t room_ = 0;
};

// Returns whether `status`, the text of /proc/PID/status, is of a process that `tracer` traces and
// that has no locked memory. CRIU also looks at its own pages, and remembers what it finds for
// other dumps; and it dumps locked memory itself.
bool may_hide(const char* status, size_t length, pid_t tracer);

}  // namespace ppmr
