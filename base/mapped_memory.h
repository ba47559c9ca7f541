// One mapping of memory, in huge pages if the kernel has them: fewer page faults at the first
// touch, fewer entries in the translation table of an RDMA device. Private, or shared: then other
// processes can map the same bytes, and the bytes live until the last process unmaps them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

inline constexpr size_t kPageSizeBytes = 4096;
inline constexpr size_t kHugePageSizeBytes = size_t{2} << 20;

// Threads: moved and destroyed by one thread. Access to the bytes is not synchronised.
class MappedMemory {
 public:
  enum class Others { kRead, kWrite };  // what processes may do that get the memfd

  // Rounds `size_bytes` up to whole huge pages. The start is aligned to a huge page. Touches
  // nothing. Errors: ENOMEM.
  static Result<MappedMemory> create(size_t size_bytes);
  // Like create(), but in a memfd, which cannot shrink. With kRead, no other process can map it for
  // writing (from Linux 5.1 on). Errors: also those of memfd_create(2).
  static Result<MappedMemory> create_shared(size_t size_bytes, Others others = Others::kRead);

  // Maps all of a memfd that another process has made, for reading and writing. Errors: of fstat(2)
  // and mmap(2); EINVAL if its size is not that of whole huge pages.
  static Result<MappedMemory> map_shared(UniqueFd memfd);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), memfd_(std::move(other.memfd_)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return memfd_.get(); }  // of the memfd; -1 for private memory

  // Makes the kernel, and the host of a virtual machine, allocate the pages of `range` now. The
  // first touch of a page costs several times as much as copying it. Writes zeros: only for memory
  // that is not in use yet.
  static void touch(std::span<std::byte> range);
  // The part of touch() for shared memory that must not be left to page faults: makes the whole
  // huge pages of `range` huge pages. Without it, shared memory is in small pages, unless the
  // administrator enabled huge pages for it. Writes zeros. Does nothing where the kernel cannot
  // (before Linux 6.1), or has no huge page.
  static void make_huge(std::span<std::byte> range);

 private:
  MappedMemory(std::span<std::byte> bytes, UniqueFd memfd)
      : bytes_(bytes), memfd_(std::move(memfd)) {}
  static Result<MappedMemory> map(size_t size, UniqueFd memfd);

  std::span<std::byte> bytes_;
  UniqueFd memfd_;
};

}  // namespace ppmr
