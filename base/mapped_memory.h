// Owns one mapping of memory. The memory has huge pages if the kernel provides them: they cause
// fewer page faults at the first touch, and need fewer entries in the translation table of an RDMA
// device. The mapping is private or shared. Other processes can map the bytes of a shared mapping,
// and these bytes live until the last process unmaps them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

inline constexpr size_t kPageSizeBytes = 4096;
inline constexpr size_t kHugePageSizeBytes = size_t{2} << 20;

// Threads: one thread at a time may move or destroy the object. Access to the bytes is not
// synchronised.
class MappedMemory {
 public:
  enum class Others { kRead, kWrite };  // what processes that get the memfd may do

  // Rounds `size_bytes` up to whole huge pages. The start is aligned to a huge page. Does not touch
  // the memory. Errors: ENOMEM.
  static Result<MappedMemory> create(size_t size_bytes);
  // Like create(), but in a memfd, which cannot shrink. With kRead, no other process can map the
  // memfd for writing (from Linux 5.1 on). Errors: also the errors of memfd_create(2).
  static Result<MappedMemory> create_shared(size_t size_bytes, Others others = Others::kRead);

  // Maps a whole memfd that another process has made, for reading and writing. Errors: the errors
  // of fstat(2) and mmap(2); EINVAL if the size is not a multiple of the huge page size.
  static Result<MappedMemory> map_shared(UniqueFd memfd);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), memfd_(std::move(other.memfd_)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return memfd_.get(); }  // the memfd; -1 for private memory

  // Makes the kernel, and the host of a virtual machine, allocate the pages of `range` now. The
  // first touch of a page costs several times as much as copying the page. Writes zeros: call it
  // only for memory that is not in use yet.
  static void touch(std::span<std::byte> range);
  // Makes each whole huge-page-sized part of `range` one huge page. Call it before touch() for
  // shared memory: page faults alone give shared memory small pages, unless the administrator
  // enabled huge pages for it. Writes zeros. Has no effect before Linux 6.1, or when the kernel has
  // no free huge page.
  static void make_huge(std::span<std::byte> range);

 private:
  MappedMemory(std::span<std::byte> bytes, UniqueFd memfd)
      : bytes_(bytes), memfd_(std::move(memfd)) {}
  static Result<MappedMemory> map(size_t size, UniqueFd memfd);

  std::span<std::byte> bytes_;
  UniqueFd memfd_;
};

}  // namespace ppmr
