#include "base/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace ppmr {
namespace {

// MADV_COLLAPSE, since Linux 6.1; the headers of Debian 12 lack it. It makes huge pages even if
// /sys/kernel/mm/transparent_hugepage/shmem_enabled is `never`, which is the default.
constexpr int kMadvCollapse = 25;

size_t rounded_up(size_t size_bytes) {
  return (size_bytes + kHugePageSizeBytes - 1) / kHugePageSizeBytes * kHugePageSizeBytes;
}

}  // namespace

Result<MappedMemory> MappedMemory::create(size_t size_bytes) {
  return map(rounded_up(size_bytes), UniqueFd());
}

Result<MappedMemory> MappedMemory::create_shared(size_t size_bytes, Others others) {
  const size_t size = rounded_up(size_bytes);
  UniqueFd memfd(::memfd_create("ppmr", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return system_failure("create shared memory of", std::to_string(size) + " bytes");
  // If the file could shrink, the kernel would kill every process that reads the lost pages
  // (SIGBUS).
  if (::ftruncate(memfd.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return system_failure("set size and seals of",
                          "shared memory of " + std::to_string(size) + " bytes");
  }
  auto memory = map(size, std::move(memfd));
  if (!memory) return memory;
  // This seal must follow our own writable mapping. It is optional: it fails before Linux 5.1.
  if (others == Others::kRead) {
    ::fcntl(memory->descriptor(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  }
  ::fcntl(memory->descriptor(), F_ADD_SEALS, F_SEAL_SEAL);
  return memory;
}

Result<MappedMemory> MappedMemory::map_shared(UniqueFd memfd) {
  struct stat status {};
  if (::fstat(memfd.get(), &status) != 0)
    return system_failure("find the size of", "shared memory");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0 || size % kHugePageSizeBytes != 0) {
    return failure(EINVAL, "map shared memory of " + std::to_string(size) +
                               " bytes: the size is not a multiple of the huge page size");
  }
  return map(size, std::move(memfd));
}

// `size` is a multiple of the huge page size.
Result<MappedMemory> MappedMemory::map(size_t size, UniqueFd memfd) {
  // mmap aligns to 4 KiB only, so this maps one huge page more and unmaps the unaligned ends.
  const size_t taken = size + kHugePageSizeBytes;
  const int protection = PROT_READ | PROT_WRITE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* start = ::mmap(nullptr, taken, protection, flags, -1, 0);
  if (start == MAP_FAILED)
    return system_failure("allocate memory of", std::to_string(size) + " bytes");
  auto* base = static_cast<std::byte*>(start);
  const auto address = reinterpret_cast<uintptr_t>(base);
  const size_t head = (kHugePageSizeBytes - address % kHugePageSizeBytes) % kHugePageSizeBytes;
  if (head > 0) ::munmap(base, head);
  ::munmap(base + head + size, taken - head - size);
  MappedMemory memory({base + head, size}, std::move(memfd));
  const auto bytes = memory.bytes();
  if (memory.memfd_ && ::mmap(bytes.data(), size, protection, MAP_SHARED | MAP_FIXED,
                              memory.descriptor(), 0) == MAP_FAILED) {
    return system_failure("map", "shared memory of " + std::to_string(size) + " bytes");
  }
  ::madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE);  // optional: errors are ignored
  ::madvise(bytes.data(), bytes.size(), MADV_DONTDUMP);  // images of processes hold secrets
  return memory;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(memfd_, other.memfd_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void MappedMemory::make_huge(std::span<std::byte> range) {
  const auto address = reinterpret_cast<uintptr_t>(range.data());
  const size_t head = (kHugePageSizeBytes - address % kHugePageSizeBytes) % kHugePageSizeBytes;
  for (size_t offset = head; offset + kHugePageSizeBytes <= range.size();
       offset += kHugePageSizeBytes) {
    // The kernel collapses a range only if the range has at least one page.
    *reinterpret_cast<volatile unsigned char*>(range.data() + offset) = 0;
    if (::madvise(range.data() + offset, kHugePageSizeBytes, kMadvCollapse) != 0) return;
  }
}

void MappedMemory::touch(std::span<std::byte> range) {
  for (size_t offset = 0; offset < range.size(); offset += kPageSizeBytes) {
    *reinterpret_cast<volatile unsigned char*>(range.data() + offset) = 0;
  }
}

}  // namespace ppmr
