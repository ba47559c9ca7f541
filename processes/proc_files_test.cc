#include "processes/proc_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "processes/test_process.h"

namespace ppmr {
namespace {

TEST(ProcFiles, MemoryShareHasAnonymousSharedAndSwappedMemory) {
  EXPECT_EQ(parse_memory_share_bytes("55d0-7ffe ---p 00000000 00:00 0    [rollup]\n"
                                     "Rss:    900 kB\nPss:    500 kB\nPss_Anon:    30 kB\n"
                                     "Pss_File:   400 kB\nPss_Shmem:    4 kB\nSwap:  9 kB\n"
                                     "SwapPss:     2 kB\n"),
            36u * 1024);
  EXPECT_EQ(parse_memory_share_bytes(""), 0u);
}

TEST(ParseProcessStat, NameMayContainAnyCharacter) {
  const auto stat = parse_process_stat(
      "412 (a) (b) S) S 1 412 400 34816 412 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 100 5 x");
  ASSERT_TRUE(stat.has_value()) << stat.error().message;
  EXPECT_EQ(stat->pid, 412);
  EXPECT_EQ(stat->name, "a) (b) S");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 1);
  EXPECT_EQ(stat->group, 412);
  EXPECT_EQ(stat->session, 400);
  EXPECT_EQ(stat->terminal, 34816);
  EXPECT_EQ(stat->start_time_ticks, 98765u);
  EXPECT_FALSE(stat->kernel_thread);
}

TEST(ParseProcessStat, RefusesIncompleteText) {
  EXPECT_FALSE(parse_process_stat("").has_value());
  EXPECT_FALSE(parse_process_stat("412").has_value());
  EXPECT_FALSE(parse_process_stat(")412(").has_value());
  EXPECT_FALSE(parse_process_stat("412 (a) S 1 2 3").has_value());
}

TEST(ParseProcessStatus, ReadsEachField) {
  const ProcessStatus status = parse_process_status(
      "Name:\tx\nTracerPid:\t7\nUid:\t1000\t1001\t1000\t1000\nGid:\t100\t100\t100\t100\n"
      "RssAnon:\t      10 kB\nRssFile:\t 500 kB\nRssShmem:\t       4 kB\nVmSwap:\t 2 kB\n"
      "VmLck:\t       8 kB\nHugetlbPages:\t    2048 kB\n"
      "NSpid:\t412\t3\nSeccomp:\t2\nThreads:\t5\nCapEff:\t000001ffffffffff\n"
      "SigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\n");
  EXPECT_EQ(status.tracer, 7);
  EXPECT_EQ(status.real_uid, 1000u);
  EXPECT_EQ(status.effective_uid, 1001u);
  EXPECT_EQ(status.real_gid, 100u);
  EXPECT_EQ(status.own_memory_bytes, 16u * 1024);
  EXPECT_EQ(status.locked_bytes, 8u * 1024);
  EXPECT_EQ(status.huge_bytes, 2048u * 1024);
  EXPECT_THAT(status.namespace_pids, testing::ElementsAre(412, 3));
  EXPECT_EQ(status.seccomp_mode, 2);
  EXPECT_EQ(status.threads, 5);
  EXPECT_EQ(status.capabilities, 0x1ffffffffffu);
  EXPECT_TRUE(status.is_pending(SIGKILL));
  EXPECT_TRUE(status.is_pending(SIGTERM));
  EXPECT_FALSE(status.is_pending(SIGINT));
}

TEST(ParseMappings, ReadsPathsWithSpacesAndDeletedFiles) {
  const auto mappings = parse_mappings(
      "7f0000000000-7f0000002000 rw-s 00000000 00:01 92                         /dev/zero "
      "(deleted)\n"
      "7f0000002000-7f0000003000 r-xp 00001000 fd:01 7   /opt/my program\n"
      "7f0000003000-7f0000004000 rw-p 00000000 00:00 0 \n"
      "nonsense\n");
  ASSERT_EQ(mappings.size(), 3u);
  EXPECT_TRUE(mappings[0].shared && mappings[0].writable && mappings[0].deleted);
  EXPECT_EQ(mappings[0].path, "/dev/zero");
  EXPECT_EQ(mappings[0].inode, 92u);
  EXPECT_EQ(mappings[0].size_bytes, 0x2000u);
  EXPECT_TRUE(mappings[1].executable);
  EXPECT_EQ(mappings[1].path, "/opt/my program");
  EXPECT_EQ(mappings[2].path, "");
}

TEST(ProcFiles, ReadParentUserMemoryAndPipesOfThisProcess) {
  const auto stat = read_process_stat(getpid());
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->parent, getppid());
  const auto status = read_process_status(getpid());
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->real_uid, getuid());
  EXPECT_GT(status->own_memory_bytes, 0u);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat file;
  ASSERT_EQ(fstat(ends[0], &file), 0);
  const auto open = read_descriptors(getpid());
  ASSERT_TRUE(open.has_value());
  int found = 0;
  for (const Descriptor& descriptor : *open)
    found += inode_in(descriptor.target, "pipe") == file.st_ino ? 1 : 0;
  EXPECT_EQ(found, 2);
  close(ends[0]), close(ends[1]);
}

TEST(ProcFiles, MissingProcessIsESRCH) {
  const pid_t missing = 0x7ffffff0;  // larger than PID_MAX_LIMIT
  for (const auto errno_value :
       {read_process_stat(missing).error().errno_value,
        read_descriptors(missing).error().errno_value, read_mappings(missing).error().errno_value,
        read_process_link(missing, "cwd").error().errno_value}) {
    EXPECT_EQ(errno_value, ESRCH);
  }
}

// Tests both ways to find children: for a process with few threads, and for a process with more
// threads than the node has processes.
TEST(ReadTree, FindsTheChildrenOfAllThreads) {
  for (const int threads : {2, 1000}) {
    const TestProcess parent([&] {
      for (int i = 0; i < threads; ++i) {
        std::thread([i] {
          if (i < 2) new TestProcess([] { new TestProcess; });
          for (;;) pause();
        }).detach();
      }
      // The main thread continues when both children and their children exist.
      while (read_tree(getpid()).value().size() != 5) std::this_thread::yield();
    });
    const auto tree = read_tree(parent.pid());
    ASSERT_TRUE(tree.has_value());
    ASSERT_EQ(tree->size(), 5u) << threads << " threads";
    EXPECT_EQ(tree->front().pid, parent.pid());
    for (size_t i = 1; i < tree->size(); ++i) {
      EXPECT_TRUE(
          std::any_of(tree->begin(), tree->begin() + static_cast<ptrdiff_t>(i),
                      [&](const ProcessStat& other) { return other.pid == (*tree)[i].parent; }))
          << "a child before its parent";
    }
  }
}

TEST(InodeIn, IsZeroIfASocketIsRequestedAndTheDescriptorIsAPipe) {
  EXPECT_EQ(inode_in("pipe:[71]", "pipe"), 71u);
  EXPECT_EQ(inode_in("pipe:[71]", "socket"), 0u);
  EXPECT_EQ(inode_in("/tmp/pipe:[71]", "pipe"), 0u);
}

}  // namespace
}  // namespace ppmr
