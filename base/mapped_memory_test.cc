#include "base/mapped_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace ppmr {
namespace {

constexpr size_t kSize = 2 * kHugePageSizeBytes;

// Returns the lines of /proc/self/smaps about the mapping that begins at `start`.
std::string smaps(const std::byte* start) {
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(start) << "-";
  std::ifstream file("/proc/self/smaps");
  std::string text;
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(address.str(), 0) == 0) found = true;
    if (found) text += line + "\n";
    if (found && line.rfind("VmFlags", 0) == 0) break;
  }
  return text;
}

TEST(MappedMemory, SharedMemoryIsTheSameInAnotherMapping) {
  auto memory = MappedMemory::create_shared(kSize);
  ASSERT_TRUE(memory) << memory.error().message;
  memory->bytes()[12345] = std::byte{42};
  void* const other = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, memory->descriptor(), 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(other)[12345], std::byte{42});
  memory = MappedMemory();  // unmaps, closes
  EXPECT_EQ(static_cast<std::byte*>(other)[12345], std::byte{42});
  ::munmap(other, kSize);
}

TEST(MappedMemory, SharedMemoryCannotBeCutOrChangedByItsBorrower) {
  auto memory = MappedMemory::create_shared(kSize);
  ASSERT_TRUE(memory);
  const int fd = memory->descriptor();
  EXPECT_NE(::ftruncate(fd, kHugePageSizeBytes), 0);
  EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageSizeBytes), 0);
  EXPECT_NE(::pwrite(fd, "x", 1, 0), 1);
  EXPECT_EQ(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(MappedMemory, SharedMemoryCanBeMadeForABorrowerThatWrites) {
  auto memory = MappedMemory::create_shared(kSize, MappedMemory::Others::kWrite);
  ASSERT_TRUE(memory);
  auto other = MappedMemory::map_shared(UniqueFd(::dup(memory->descriptor())));
  ASSERT_TRUE(other) << other.error().message;
  ASSERT_EQ(other->bytes().size(), kSize);
  other->bytes()[12345] = std::byte{42};
  EXPECT_EQ(memory->bytes()[12345], std::byte{42});
  EXPECT_NE(::ftruncate(other->descriptor(), kHugePageSizeBytes), 0);
}

TEST(MappedMemory, RefusesToMapAFileOfAnotherSize) {
  const int fd = ::memfd_create("small", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, kPageSizeBytes), 0);
  EXPECT_EQ(MappedMemory::map_shared(UniqueFd(fd)).error().errno_value, EINVAL);
}

TEST(MappedMemory, IsNotInCoreDumps) {
  auto private_memory = MappedMemory::create(kSize);
  auto shared_memory = MappedMemory::create_shared(kSize);
  for (const auto* memory : {&private_memory, &shared_memory}) {
    ASSERT_TRUE(*memory);
    const std::string lines = smaps((*memory)->bytes().data());
    EXPECT_NE(lines.substr(lines.rfind("VmFlags")).find(" dd"), std::string::npos) << lines;
  }
}

TEST(MappedMemory, SharedMemoryIsInHugePages) {
  auto memory = MappedMemory::create_shared(kSize);
  ASSERT_TRUE(memory);
  MappedMemory::make_huge(memory->bytes());
  const std::string lines = smaps(memory->bytes().data());
  if (lines.find("ShmemPmdMapped:     4096 kB") != std::string::npos) return;
  constexpr int kMadvCollapse = 25;
  memory->bytes()[0] = std::byte{0};
  const bool can = ::madvise(memory->bytes().data(), kSize, kMadvCollapse) == 0;
  EXPECT_FALSE(can) << lines;
  GTEST_SKIP() << "this kernel makes no huge pages of shared memory: " << strerror(errno);
}

TEST(MappedMemory, MakesOnlyTheWholeHugePagesOfARange) {
  auto memory = MappedMemory::create_shared(kSize);
  ASSERT_TRUE(memory);
  memory->bytes()[0] = std::byte{1};
  memory->bytes()[kSize - 1] = std::byte{2};
  MappedMemory::make_huge(memory->bytes().subspan(1, kSize - 2));
  EXPECT_EQ(memory->bytes()[0], std::byte{1});
  EXPECT_EQ(memory->bytes()[kSize - 1], std::byte{2});
}

}  // namespace
}  // namespace ppmr
