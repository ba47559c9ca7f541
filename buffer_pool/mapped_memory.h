// Anonymous memory mapped in one piece, in huge pages where the kernel has them: fewer faults at
// the first touch, fewer entries in an RDMA device's translation table.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "buffer_pool/result.h"

namespace ppmr {

inline constexpr size_t kPageSizeBytes = 4096;
inline constexpr size_t kHugePageSizeBytes = size_t{2} << 20;

// Threads: a MappedMemory is moved and destroyed by one thread; its bytes are its user's business.
class MappedMemory {
 public:
  // `size_bytes` is rounded up to whole huge pages; the start is aligned to a huge page. Nothing is
  // touched yet. Errors: ENOMEM.
  static Result<MappedMemory> create(size_t size_bytes);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

  // Makes the kernel (and the host below a virtual machine) back `range` now: the first touch of a
  // fresh page costs several times the copy that would otherwise have to wait for it. Writes zeros:
  // only for memory that nobody uses yet.
  static void touch(std::span<std::byte> range);

 private:
  explicit MappedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

}  // namespace ppmr
