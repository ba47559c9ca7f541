#include "restart_loader/criu/sparse_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace ppmr {
namespace {

constexpr size_t kPageBytes = 4096;

std::byte* map(size_t bytes, int flags, int file = -1) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

std::byte* map_private(size_t bytes) {
  return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
}

TEST(SparseCopy, CopiesWhatWasWrittenAndAllocatesNoMore) {
  const size_t bytes = 4ULL << 30;
  std::byte* const from = map_private(bytes);
  const int file = memfd_create("copy", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
  std::byte* const to = map(bytes, MAP_SHARED, file);
  ASSERT_TRUE(from != nullptr && to != nullptr);
  madvise(from, bytes, MADV_NOHUGEPAGE);
  const size_t written[] = {0, bytes / 2 - 1, bytes / 2, bytes - 1};
  for (const size_t at : written) from[at] = std::byte{7};
  copy_sparse(to, from, bytes);
  for (const size_t at : written) EXPECT_EQ(to[at], std::byte{7}) << at;
  struct stat facts {};
  ASSERT_EQ(fstat(file, &facts), 0);
  EXPECT_LE(static_cast<size_t>(facts.st_blocks) * 512, 4 * kPageBytes);
  munmap(from, bytes);
  munmap(to, bytes);
  close(file);
}

TEST(SparseCopy, CopiesRangesThatBeginAndEndInsideOfPages) {
  const size_t bytes = 8 * kPageBytes;
  std::byte* const from = map_private(bytes);
  std::byte* const to = map_private(bytes);
  ASSERT_TRUE(from != nullptr && to != nullptr);
  for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 31 % 251);
  for (const auto& [start, length] :
       {std::pair<size_t, size_t>{0, 0}, {0, 1}, {5, 10}, {4095, 2}, {100, 3 * kPageBytes},
        {kPageBytes, kPageBytes}, {1, bytes - 8}}) {
    memset(to, 0, bytes);
    copy_sparse(to + 3, from + start, length);
    EXPECT_EQ(memcmp(to + 3, from + start, length), 0) << start;
    EXPECT_EQ(to[2], std::byte{0});
    EXPECT_EQ(to[length + 3], std::byte{0}) << start << " " << length;
  }
  munmap(from, bytes);
  munmap(to, bytes);
}

}  // namespace
}  // namespace ppmr
