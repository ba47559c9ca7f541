#include "restart_loader/criu/sparse_copy.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>

// Uses no C++ runtime library, because this is a part of the library that CRIU loads.

namespace ppmr {
namespace {

constexpr uintptr_t kPageBytes = 4096;
// A page is present or swapped: bits 63 and 62 of its entry in /proc/PID/pagemap.
constexpr unsigned kExistsShift = 62;
constexpr size_t kEntriesPerRead = 2048;

}  // namespace

void copy_sparse(void* to, const void* from, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(from);
  const auto destination = reinterpret_cast<uintptr_t>(to);
  const uintptr_t end = start + bytes;
  uintptr_t at = start;  // everything before it is copied, or was never written
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  while (pagemap >= 0 && at < end) {
    uint64_t entries[kEntriesPerRead];
    const uintptr_t first = at / kPageBytes;
    const ssize_t n =
        pread(pagemap, entries, sizeof(entries), static_cast<off_t>(first * sizeof(entries[0])));
    if (n < static_cast<ssize_t>(sizeof(entries[0]))) break;
    const size_t count = static_cast<size_t>(n) / sizeof(entries[0]);
    for (size_t i = 0; i < count && at < end; ++i) {
      const uintptr_t page_end = (first + i + 1) * kPageBytes;
      const uintptr_t next = page_end < end ? page_end : end;
      if ((entries[i] >> kExistsShift) != 0) {
        memmove(reinterpret_cast<void*>(destination + (at - start)),
                reinterpret_cast<const void*>(at), next - at);
      }
      at = next;
    }
  }
  if (pagemap >= 0) close(pagemap);
  memmove(reinterpret_cast<void*>(destination + (at - start)), reinterpret_cast<const void*>(at),
          end - at);
}

}  // namespace ppmr
