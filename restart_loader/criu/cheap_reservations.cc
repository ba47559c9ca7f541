// Makes reserved address space cost a dump nothing. This part of the library in CRIU
// (criu_library.h) replaces three functions of libc. They behave as in libc except for very large
// arguments.
//
// In a lazy dump, CRIU 3.17 to 4.2 allocates a list with room for 16 bytes per page of private
// memory, and copies all of that room into memory that it shares with the dumped process
// (drain_pages() in criu/mem.c). It has filled only a little of the room, so what the process
// reserves costs as much as what it uses. For 1 TiB reserved, that is 4 GiB to write while the
// process is frozen; for 8 TiB, malloc(3) fails. Java, .NET, Node.js with WebAssembly, MariaDB and
// sanitizers reserve that much.
//
// Rejected: to dump such processes without --lazy-pages, because then their memory travels while
// they are frozen; to unmap the reservations for the dump, because a killed dump would leave the
// process without them.
//
// CRIU has one thread. This file uses no C++ runtime library, because CRIU has none.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "restart_loader/criu/sparse_copy.h"

namespace {

// The size of the list for 16 GiB of private memory. CRIU copies nothing else that is as large.
constexpr size_t kLargeCopyBytes = 64ULL << 20;
// The kernel does not count larger allocations against the memory of the machine (MAP_NORESERVE),
// because CRIU never writes to most of their pages.
constexpr size_t kLargeAllocationBytes = 1ULL << 30;
constexpr size_t kAllocationsMax = 256;  // one for each process with 256 GiB

struct Allocation {
  void* memory = nullptr;
  size_t bytes = 0;
};
Allocation allocations[kAllocationsMax];
size_t allocations_made = 0;

Allocation* allocation_at(const void* memory) {
  for (Allocation& entry : allocations) {
    if (entry.memory == memory) return &entry;
  }
  return nullptr;
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t bytes);
void __libc_free(void* memory);

__attribute__((visibility("default"))) void* memcpy(void* to, const void* from, size_t bytes) {
  if (bytes < kLargeCopyBytes) return memmove(to, from, bytes);
  ppmr::copy_sparse(to, from, bytes);
  return to;
}

__attribute__((visibility("default"))) void* malloc(size_t bytes) {
  Allocation* const entry = bytes < kLargeAllocationBytes ? nullptr : allocation_at(nullptr);
  if (entry == nullptr) return __libc_malloc(bytes);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;  // errno is ENOMEM
  *entry = {memory, bytes};
  ++allocations_made;
  return memory;
}

__attribute__((visibility("default"))) void free(void* memory) {
  Allocation* const entry =
      memory == nullptr || allocations_made == 0 ? nullptr : allocation_at(memory);
  if (entry == nullptr) return __libc_free(memory);
  munmap(entry->memory, entry->bytes);
  *entry = {};
}

}  // extern "C"
