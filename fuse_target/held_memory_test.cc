#include "fuse_target/held_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

std::vector<UniqueFd> memfds(size_t count) {
  std::vector<UniqueFd> made;
  for (size_t i = 0; i < count; ++i) made.emplace_back(memfd_create("held", MFD_CLOEXEC));
  return made;
}

ino_t inode_of(const UniqueFd& memory) {
  struct stat facts {};
  return fstat(memory.get(), &facts) == 0 ? facts.st_ino : 0;
}

// Returns how many memories the owner gets.
size_t lent(const HeldMemory& held, const std::string& checkpoint, const std::string& owner) {
  std::vector<UniqueFd> descriptors;
  const auto answer = held.lend({checkpoint, owner}, descriptors);
  EXPECT_TRUE(answer);
  EXPECT_EQ(answer->at("inodes").size(), descriptors.size());
  return descriptors.size();
}

TEST(HeldMemory, LendsTheSameMemoryToItsOwnerOnly) {
  HeldMemory held;
  auto memory = memfds(2);
  const ino_t second = inode_of(memory[1]);
  ASSERT_TRUE(held.hold({"one", "peer", {17, 18}}, std::move(memory)));
  std::vector<UniqueFd> descriptors;
  const auto answer = held.lend({"one", "peer"}, descriptors);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->at("inodes"), (std::vector<uint64_t>{17, 18}));
  ASSERT_EQ(descriptors.size(), 2U);
  EXPECT_EQ(inode_of(descriptors[1]), second);
  EXPECT_EQ(lent(held, "one", "other peer"), 0U);
  EXPECT_EQ(lent(held, "two", "peer"), 0U);
}

TEST(HeldMemory, EachMemoryNeedsADescriptor) {
  HeldMemory held;
  EXPECT_EQ(held.hold({"one", "peer", {17, 18}}, memfds(1)).error().errno_value, EINVAL);
  EXPECT_EQ(lent(held, "one", "peer"), 0U);
}

TEST(HeldMemory, EndsWithItsCheckpoint) {
  HeldMemory held;
  for (const char* name : {"one", "two", "three"}) {
    ASSERT_TRUE(held.hold({name, "peer", {17}}, memfds(1)));
  }
  held.release("one");
  held.release_others({"one", "two"});
  EXPECT_EQ(lent(held, "one", "peer"), 0U);
  EXPECT_EQ(lent(held, "two", "peer"), 1U);
  EXPECT_EQ(lent(held, "three", "peer"), 0U);
}

}  // namespace
}  // namespace ppmr
