#include "buffer_pool/mapped_memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace ppmr {

Result<MappedMemory> MappedMemory::create(size_t size_bytes) {
  const size_t size =
      (size_bytes + kHugePageSizeBytes - 1) / kHugePageSizeBytes * kHugePageSizeBytes;
  // mmap aligns to 4 KiB only: map one huge page more and unmap the unaligned ends.
  const size_t taken = size + kHugePageSizeBytes;
  void* start = ::mmap(nullptr, taken, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return system_failure("mmap", std::to_string(size) + " bytes");
  auto* base = static_cast<std::byte*>(start);
  const auto address = reinterpret_cast<uintptr_t>(base);
  const size_t head = (kHugePageSizeBytes - address % kHugePageSizeBytes) % kHugePageSizeBytes;
  if (head > 0) ::munmap(base, head);
  ::munmap(base + head + size, taken - head - size);
  std::span<std::byte> bytes(base + head, size);
  ::madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE);  // optional: errors are ignored
  ::madvise(bytes.data(), bytes.size(), MADV_DONTDUMP);  // images of processes hold secrets
  return MappedMemory(bytes);
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void MappedMemory::touch(std::span<std::byte> range) {
  for (size_t offset = 0; offset < range.size(); offset += kPageSizeBytes) {
    *reinterpret_cast<volatile unsigned char*>(range.data() + offset) = 0;
  }
}

}  // namespace ppmr
