#include "base/locked.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace ppmr {
namespace {

using Key = std::array<unsigned char, 32>;

// Returns the flags of the mapping that contains `address`, see proc(5).
std::string flags_of(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      found = begin <= wanted && wanted < end;
    } else if (found && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(Locked, IsNotSwappedOutAndNotDumped) {
  const Locked<Key> key(Key{1, 2, 3});
  EXPECT_EQ((*key)[2], 3);
  ASSERT_TRUE(key.is_locked());
  EXPECT_NE(flags_of(&*key).find(" lo "), std::string::npos) << flags_of(&*key);
  EXPECT_NE(flags_of(&*key).find(" dd "), std::string::npos) << flags_of(&*key);
}

TEST(Locked, BeginsWithZeros) {
  const Locked<Key> key;
  EXPECT_EQ(*key, Key{});
}

// Uses secrets without the right to lock memory beyond the limit.
void use_beyond_the_limit() {
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) ::_exit(2);
  if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(3);
  const Locked<Key> key(Key{1, 2, 3});
  ::_exit(!key.is_locked() && (*key)[2] == 3 ? 0 : 1);
}

TEST(Locked, WorksBeyondTheLimit) {
  EXPECT_EXIT(use_beyond_the_limit(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ppmr
