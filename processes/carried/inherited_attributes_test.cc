#include "processes/carried/inherited_attributes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

void prefer_node_0() {
  const unsigned long nodes = 1;
  if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &nodes, 65) != 0) abort();
}

bool has_numa() { return access("/proc/self/numa_maps", R_OK) == 0; }

ProcessIdentity identity(const TestProcess& process) { return identify(process.pid()).value(); }

TEST(InheritedAttributes, HaveTheDefaultsInANewProcess) {
  const TestProcess process;
  const auto read = read_inherited({identity(process)});
  ASSERT_TRUE(read);
  EXPECT_THAT(read->lost, IsEmpty());
  EXPECT_THAT(unlike(read->agreed, carried::Inherited()), IsEmpty());
  EXPECT_EQ(inherited_text(read->agreed, "0"), "");
}

TEST(InheritedAttributes, AreReadFromAProcess) {
  const TestProcess process([] {
    personality(ADDR_NO_RANDOMIZE);
    if (has_numa()) prefer_node_0();
  });
  const auto read = read_inherited({identity(process)});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->agreed.personality(), static_cast<uint32_t>(ADDR_NO_RANDOMIZE));
  if (!has_numa()) GTEST_SKIP() << "the rest of this test needs CONFIG_NUMA";
  EXPECT_EQ(read->agreed.memory_policy().mode(), static_cast<uint32_t>(MPOL_PREFERRED));
  EXPECT_THAT(read->agreed.memory_policy().node(), ElementsAre(0u));
}

// As a JVM has its heap there. The kernel would inspect all of its pages, for each thread. The
// mapping ends below the shadow memory of AddressSanitizer.
void map_large_first() {
  void* const lowest = reinterpret_cast<void*>(0x100000);
  if (mmap(lowest, size_t{3} << 29, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != lowest) {
    abort();
  }
}

TEST(InheritedAttributes, IncludeThePolicyFromBeforeTheFreezeIfTheFirstMappingIsLarge) {
  if (!has_numa()) GTEST_SKIP() << "needs CONFIG_NUMA";
  const TestProcess process([] {
    prefer_node_0();
    map_large_first();
  });
  const auto preferred = static_cast<uint32_t>(MPOL_PREFERRED);
  EXPECT_EQ(read_inherited({identity(process)})->agreed.memory_policy().mode(), preferred);
  const TestProcess with_threads([] {
    prefer_node_0();
    map_large_first();
    for (int i = 0; i < 8; ++i) std::thread([] { pause(); }).detach();
  });
  EXPECT_EQ(read_inherited({identity(with_threads)})->agreed.memory_policy().mode(), preferred);
  carried::Inherited before;
  before.mutable_memory_policy()->set_mode(MPOL_LOCAL);
  EXPECT_EQ(read_inherited({identity(with_threads)}, &before)->agreed.memory_policy().mode(),
            static_cast<uint32_t>(MPOL_LOCAL));
  EXPECT_EQ(read_inherited({identity(process)}, &before)->agreed.memory_policy().mode(),
            static_cast<uint32_t>(MPOL_LOCAL))
      << "no thread is asked";
#ifndef __SANITIZE_ADDRESS__  // its shadow memory, some terabytes, would come first
  const TestProcess small([] { prefer_node_0(); });
  EXPECT_EQ(read_inherited({identity(small)}, &before)->agreed.memory_policy().mode(), preferred);
#endif
}

TEST(InheritedAttributes, IncludeTheIoFlusherFlag) {
  if (prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) < 0) GTEST_SKIP() << "needs CAP_SYS_RESOURCE";
  const TestProcess process([] {
    if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) abort();
  });
  EXPECT_TRUE(read_inherited({identity(process)})->agreed.is_io_flusher());
}

TEST(InheritedAttributes, IncludeTheSignalForMemoryThatHasFailed) {
  const auto failure_of = [](unsigned long policy) {
    const TestProcess process([policy] {
      if (prctl(PR_MCE_KILL, PR_MCE_KILL_SET, policy, 0, 0) != 0) abort();
    });
    return read_inherited({identity(process)})->agreed.memory_failure();
  };
  EXPECT_EQ(failure_of(PR_MCE_KILL_LATE), 1u);
  EXPECT_EQ(failure_of(PR_MCE_KILL_EARLY), 2u);
}

TEST(InheritedAttributes, LoseAttributesInWhichTasksDiffer) {
  const TestProcess plain;
  const TestProcess fixed([] { personality(ADDR_NO_RANDOMIZE); });
  const auto read = read_inherited({identity(fixed), identity(plain)});
  ASSERT_TRUE(read);
  EXPECT_THAT(read->lost, ElementsAre("personality, in which its tasks differ"));
  EXPECT_EQ(read->agreed.personality(), 0u);
}

// CRIU's own mappings would become executable.
TEST(InheritedAttributes, DoNotIncludeExecutableData) {
  const TestProcess process([] { personality(READ_IMPLIES_EXEC); });
  const auto read = read_inherited({identity(process)});
  ASSERT_TRUE(read);
  EXPECT_THAT(read->lost, ElementsAre(HasSubstr("executable")));
  EXPECT_EQ(read->agreed.personality(), 0u);
}

TEST(InheritedAttributes, ParsesMemoryPolicies) {
  EXPECT_EQ(parse_memory_policy("default anon=1 N0=1\n")->mode(), 0u);
  const auto bound = parse_memory_policy("bind:0-2,8 file=/usr/bin/x mapped=2");
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->mode(), static_cast<uint32_t>(MPOL_BIND));
  EXPECT_THAT(bound->node(), ElementsAre(0u, 1u, 2u, 8u));
  const auto fixed = parse_memory_policy("interleave=static:1\n");
  ASSERT_TRUE(fixed);
  EXPECT_EQ(fixed->mode(), static_cast<uint32_t>(MPOL_INTERLEAVE | MPOL_F_STATIC_NODES));
  EXPECT_EQ(parse_memory_policy("prefer:1 heap")->mode(), static_cast<uint32_t>(MPOL_PREFERRED));
  EXPECT_EQ(parse_memory_policy("prefer (many):0-1 heap")->mode(),
            static_cast<uint32_t>(MPOL_PREFERRED_MANY));
  EXPECT_THAT(parse_memory_policy("prefer (many):0-1 heap")->node(), SizeIs(2));
  EXPECT_EQ(parse_memory_policy("weighted interleave:0 heap")->mode(), 6u);
  EXPECT_FALSE(parse_memory_policy("interleave=surprising:1"));
  EXPECT_FALSE(parse_memory_policy(""));
}

TEST(InheritedAttributes, BecomeTheTextThatCriuReads) {
  carried::Inherited wanted;
  wanted.set_personality(ADDR_NO_RANDOMIZE);
  wanted.set_merges_pages(true);
  wanted.set_memory_failure(2);
  wanted.mutable_memory_policy()->set_mode(MPOL_BIND);
  wanted.mutable_memory_policy()->add_node(1);
  wanted.mutable_memory_policy()->add_node(3);
  EXPECT_EQ(inherited_text(wanted, "0-7"), "262144 0 1 2 2 1 3\n");
  EXPECT_EQ(inherited_text(wanted, "0-1\n"), "262144 0 1 2 2 1\n");
  EXPECT_EQ(inherited_text(wanted, "0"), "262144 0 1 2 0\n") << "none of these nodes is here";
}

}  // namespace
}  // namespace ppmr
