#include "processes/carried/lost_attributes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kPageBytes = 4096;

void* map_page() {
  return mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

LostAttributes parse(const std::string& smaps) {
  LostAttributes lost;
  parse_protected_mappings(smaps, lost);
  return lost;
}

TEST(LostAttributes, APlainProcessHasNone) {
  const TestProcess process;
  const auto lost = read_lost_attributes(process.pid());
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->phrases, IsEmpty());
  EXPECT_FALSE(lost->has_seals);
  EXPECT_FALSE(lost->has_protection_keys);
}

TEST(LostAttributes, ASealIsFound) {
  constexpr long kMseal = 462;  // Linux 6.10
  if (syscall(kMseal, nullptr, 0, 1) != 0 && errno == ENOSYS) {
    GTEST_SKIP() << "NOT TESTED: sealed mappings: the kernel has no mseal(2) (Linux 6.10)";
  }
  const TestProcess process([] {
    if (syscall(kMseal, map_page(), kPageBytes, 0) != 0) abort();
  });
  EXPECT_TRUE(read_lost_attributes(process.pid())->has_seals);
}

TEST(LostAttributes, SealsAndKeysOfTheKernelDoNotCount) {
  EXPECT_TRUE(parse("1000-2000 r--p 0 00:00 0 \nVmFlags: rd mr sl \n").has_seals);
  EXPECT_TRUE(parse("1000-2000 r--p 0 08:01 7   /a: b\nVmFlags: rd sl\n").has_seals);
  EXPECT_FALSE(parse("1000-2000 r-xp 0 00:00 0     [vdso]\nVmFlags: rd ex sl \n").has_seals);
  EXPECT_FALSE(parse("1000-2000 r--p 0 00:00 0 \nVmFlags: rd mr \n").has_seals);
  const std::string key = "ProtectionKey:         1\n";
  EXPECT_TRUE(parse("1000-2000 rw-p 0 00:00 0 \n" + key).has_protection_keys);
  EXPECT_FALSE(parse("1000-2000 --xp 0 00:00 0 \n" + key).has_protection_keys);
  EXPECT_FALSE(parse("1000-2000 rw-p 0 00:00 0 \nProtectionKey:   0\n").has_protection_keys);
}

TEST(LostAttributes, ThePolicyOfAMappingIsFound) {
  if (access("/proc/self/numa_maps", R_OK) != 0) {
    GTEST_SKIP() << "NOT TESTED: memory policies: the kernel has no numa_maps (CONFIG_NUMA)";
  }
  const TestProcess process([] {
    const unsigned long nodes = 1;
    if (syscall(SYS_mbind, map_page(), kPageBytes, MPOL_PREFERRED, &nodes, 65, 0) != 0) abort();
  });
  EXPECT_THAT(read_lost_attributes(process.pid())->phrases,
              ElementsAre(HasSubstr("of single mappings")));
  EXPECT_FALSE(has_policies_of_mappings("1000 prefer:0 heap\n2000 prefer:0 stack\n"));
}

TEST(LostAttributes, LockedMemoryMayMeanThatFutureMappingsAreLocked) {
  const TestProcess process([] {
    if (syscall(SYS_mlockall, MCL_FUTURE) != 0) abort();  // the sanitizers replace mlockall()
    map_page();
  });
  EXPECT_THAT(read_lost_attributes(process.pid())->phrases, Contains(HasSubstr("MCL_FUTURE")));
}

TEST(LostAttributes, WhatAThreadHasSetForTheProcessorIsFound) {
  const std::string plain =
      "Speculation_Store_Bypass:\tthread vulnerable\n"
      "SpeculationIndirectBranch:\tconditional enabled\nuntag_mask:\t0xffffffffffffffff\n";
  const std::string set =
      "Seccomp:\t0\nSpeculation_Store_Bypass:\tthread force mitigated\n"
      "SpeculationIndirectBranch:\tconditional disabled\nuntag_mask:\t0x81ffffffffffffff\n";
  EXPECT_THAT(lost_in_status(plain, plain), IsEmpty());
  EXPECT_THAT(lost_in_status(set, plain),
              ElementsAre(HasSubstr("store bypass"), HasSubstr("branches"), HasSubstr("tags")));
  const std::string filtered = "Seccomp:\t2\n" + set.substr(set.find('\n') + 1);
  EXPECT_THAT(lost_in_status(filtered, plain), ElementsAre(HasSubstr("tags")));
}

}  // namespace
}  // namespace ppmr
