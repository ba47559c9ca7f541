// One mapping of anonymous memory, in huge pages if the kernel has them: fewer page faults at the
// first touch, fewer entries in the translation table of an RDMA device.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "buffer_pool/result.h"

namespace ppmr {

inline constexpr size_t kPageSizeBytes = 4096;
inline constexpr size_t kHugePageSizeBytes = size_t{2} << 20;

// Threads: moved and destroyed by one thread. Access to the bytes is not synchronised.
class MappedMemory {
 public:
  // Rounds `size_bytes` up to whole huge pages. The start is aligned to a huge page. Touches
  // nothing. Errors: ENOMEM.
  static Result<MappedMemory> create(size_t size_bytes);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

  // Makes the kernel, and the host of a virtual machine, allocate the pages of `range` now. The
  // first touch of a page costs several times as much as copying it. Writes zeros: only for memory
  // that is not in use yet.
  static void touch(std::span<std::byte> range);

 private:
  explicit MappedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

}  // namespace ppmr
