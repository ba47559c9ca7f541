// The rounds of a running tree have the last value of each page, whatever happens to its mappings.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "processes/memory/live_memory_rig.h"
#include "processes/memory/write_protection.h"

namespace ppmr {
namespace {

TEST_F(LiveRounds, SendOnlyWhatWasWrittenSinceTheLastRound) {
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'a') touch(memory_, 3, 2), memory_[3 * kPage] = std::byte{9};
    if (what == 'b') memory_[40 * kPage + 1] = std::byte{10};
  });
  const uint64_t first = round(process);
  EXPECT_GE(first, kPages * kPage);
  process.does('a');
  const uint64_t second = round(process);
  EXPECT_GE(second, 2 * kPage);
  EXPECT_LT(second, first / 2);
  process.does('b');
  EXPECT_GE(live_->count_written_bytes(), kPage);
  const uint64_t frozen = finish(process);
  EXPECT_GE(frozen, kPage);
  EXPECT_LT(frozen, first / 2);
  EXPECT_EQ(discarded_, "");
  EXPECT_LT(*place(task_, memory_, 5), first);
  EXPECT_GE(*place(task_, memory_, 3), first);
  EXPECT_GE(*place(task_, memory_, 40), first + second);
}

TEST_F(LiveRounds, SendAgainWhatWasTakenBack) {
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'a') memory_[3 * kPage] = std::byte{9};
    if (what == 'b') memory_[40 * kPage] = std::byte{10};
    if (what == 'c') munmap(memory_ + 50 * kPage, 4 * kPage);
  });
  const uint64_t first = round(process);
  process.does('a');
  round(process);
  process.does('b');
  round(process);
  process.does('c');
  live_->take_back(first);
  file_.resize(first);
  EXPECT_EQ(live_->sent_bytes(), first);
  const uint64_t again = round(process);
  EXPECT_GE(again, 2 * kPage);
  if (WriteProtection::is_possible()) {
    EXPECT_LT(again, first / 2);
  }
  finish(process);
  if (WriteProtection::is_possible()) {
    EXPECT_LT(*place(task_, memory_, 5), first);
  }
  EXPECT_GE(*place(task_, memory_, 3), first);
  EXPECT_GE(*place(task_, memory_, 40), first);
}

TEST_F(LiveRounds, FollowMappingsThatComeGoAndMove) {
  touch(memory_, 0, kPages);
  std::byte* moved = map(MAP_PRIVATE);
  touch(moved, 0, kPages);
  std::byte* const place_to_move = map(MAP_PRIVATE);
  const LiveProcess process([&](char what) {
    if (what == 'a') {
      munmap(memory_, 8 * kPage);
      madvise(memory_ + 8 * kPage, 8 * kPage, MADV_DONTNEED);
      memory_[8 * kPage] = std::byte{42};
      (void)*static_cast<volatile std::byte*>(memory_ + 10 * kPage);  // maps the zero page
      mmap(memory_, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
           0);
      memory_[kPage] = std::byte{43};
      mremap(moved, kPages * kPage, kPages * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, place_to_move);
      mprotect(memory_ + 20 * kPage, 4 * kPage, PROT_READ);
    }
  });
  const uint64_t first = round(process);
  process.does('a');
  finish(process);
  EXPECT_FALSE(place(task_, memory_, 6));
  EXPECT_FALSE(place(task_, memory_, 9));
  EXPECT_TRUE(place(task_, memory_, 1));
  EXPECT_TRUE(place(task_, memory_, 8));
  if (const auto zeros = place(task_, memory_, 10)) {
    EXPECT_GE(*zeros, first);
  }
  EXPECT_TRUE(place(task_, place_to_move, 5));
  EXPECT_FALSE(place(task_, moved, 5));
}

// Linux 6.7 to 6.12, if a later fix is missing, leaves moved pages protected, so they look
// unwritten.
TEST_F(LiveRounds, FollowMemoryThatMovesToThePlaceOfOtherMemory) {
  touch(memory_, 0, kPages);
  std::byte* const moved = map(MAP_PRIVATE);
  for (size_t i = 0; i < kPages; ++i) moved[i * kPage] = std::byte{8};
  const LiveProcess process([&](char what) {
    if (what == 'a') {
      mremap(moved, kPages * kPage, kPages * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, memory_);
    }
    if (what == 'b') memory_[5 * kPage] = std::byte{9};
  });
  const uint64_t first = round(process);
  process.does('a');
  const uint64_t second = round(process);
  process.does('b');
  finish(process);  // compares each page in use with its newest copy
  EXPECT_GE(*place(task_, memory_, 4), first);
  EXPECT_GE(*place(task_, memory_, 5), first + second);
}

// The kernel moves aligned memory by whole page tables, and does not look at each page.
TEST_F(LiveRounds, FollowMemoryWhosePageTableMovesToThePlaceOfOtherMemory) {
  constexpr size_t kTable = 512;  // pages of a page table
  std::byte* const area = map(MAP_PRIVATE, 4 * kTable);
  const uint64_t table_bytes = kTable * kPage;
  const uint64_t aligned =
      (reinterpret_cast<uint64_t>(area) + table_bytes - 1) / table_bytes * table_bytes;
  std::byte* const here = area + (aligned - reinterpret_cast<uint64_t>(area));
  std::byte* const there = here + 2 * table_bytes;
  touch(here, 0, kTable);
  for (size_t i = 0; i < kTable; ++i) there[i * kPage] = std::byte{8};
  const LiveProcess process([&](char what) {
    if (what == 'a') mremap(here, table_bytes, table_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    if (what == 'b') there[5 * kPage] = std::byte{9};
  });
  const uint64_t first = round(process);
  process.does('a');
  const uint64_t second = round(process);
  process.does('b');
  finish(process);  // compares each page in use with its newest copy
  EXPECT_GE(*place(task_, there, 4), first);
  EXPECT_GE(*place(task_, there, 5), first + second);
}

TEST_F(LiveRounds, FollowMappingsBetweenTwoRounds) {
  touch(memory_, 0, kPages);
  const LiveProcess process([&](char what) {
    if (what != 'a') return;
    mmap(memory_ + 8 * kPage, 4 * kPage, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memory_[9 * kPage] = std::byte{43};
  });
  round(process);
  process.does('a');
  round(process);
  EXPECT_LT(finish(process), 16 * kPage);
}

// After a process has discarded a page, the copy of the page is out of date, although nothing has
// written to the page.
TEST_F(LiveRounds, ForgetPagesThatWereDiscardedAndRead) {
  constexpr size_t kHugeBytes = size_t{2} << 20;
  void* mapped =
      mmap(nullptr, 3 * kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto at = (reinterpret_cast<uint64_t>(mapped) + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  auto* const huge = reinterpret_cast<std::byte*>(at);
  madvise(huge, kHugeBytes, MADV_HUGEPAGE);
  touch(huge, 0, kHugeBytes / kPage);
  touch(memory_, 0, kPages);
  const LiveProcess process([&](char) {
    for (std::byte* const page : {huge, memory_ + 8 * kPage}) {
      madvise(page, page == huge ? kHugeBytes : kPage, MADV_DONTNEED);
      (void)*static_cast<volatile std::byte*>(page);
    }
  });
  const uint64_t first = round(process);
  process.does('a');
  finish(process);
  for (const auto& found :
       {place(task_, huge, 0), place(task_, huge, 9), place(task_, memory_, 8)}) {
    EXPECT_TRUE(!found || *found >= first) << "its old copy is taken for its content";
  }
  EXPECT_LT(*place(task_, memory_, 9), first);
  munmap(mapped, 3 * kHugeBytes);
}

TEST_F(LiveRounds, FollowAMappingInThePlaceOfAnEarlierOne) {
  touch(memory_, 0, kPages);
  const LiveProcess process([&](char what) {
    if (what == 'a') munmap(memory_ + 8 * kPage, 4 * kPage);
    if (what != 'b') return;
    mmap(memory_ + 8 * kPage, 4 * kPage, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memory_[9 * kPage] = std::byte{43};
  });
  const uint64_t first = round(process);
  process.does('a');
  round(process);
  process.does('b');
  finish(process);
  EXPECT_FALSE(place(task_, memory_, 8));
  EXPECT_GE(*place(task_, memory_, 9), first);
}

// Each page is written once, so what a round has missed stays missing.
TEST_F(LiveRounds, LoseNoWriteOfThreadsThatNeverStop) {
  constexpr size_t kThreads = 2;
  constexpr size_t kWritten = 8192;
  constexpr auto kBetweenWrites = std::chrono::microseconds(30);
  void* mapped =
      mmap(nullptr, kWritten * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  madvise(mapped, kWritten * kPage, MADV_NOHUGEPAGE);
  auto* const pages = static_cast<std::byte*>(mapped);
  touch(pages, 0, kWritten);
  std::atomic<size_t> left{kThreads};
  const auto write_once = [&](size_t number) {
    for (size_t page = number; page < kWritten; page += kThreads) {
      pages[page * kPage] = std::byte{8};
      const auto until = std::chrono::steady_clock::now() + kBetweenWrites;
      while (std::chrono::steady_clock::now() < until) continue;
    }
    --left;
  };
  const LiveProcess process([&](char what) {
    if (what == 'w') {
      for (size_t number = 0; number < kThreads; ++number) {
        std::thread(write_once, number).detach();
      }
    }
    if (what == '?') pages[0] = left == 0 ? std::byte{1} : std::byte{0};
  });
  const auto is_writing = [&] {
    process.does('?');
    std::byte ended{};
    const iovec local{&ended, 1};
    const iovec remote{pages, 1};
    return process_vm_readv(process.pid(), &local, 1, &remote, 1, 0) != 1 || ended == std::byte{0};
  };
  round(process);
  process.does('w');
  while (is_writing()) round(process);
  finish(process);
  munmap(mapped, kWritten * kPage);
}

// A process with children that share its memory. They stop, do one thing at a time, and stop again.
class Family {
 public:
  Family(std::byte* memory, size_t children) : memory_(memory), children_(children) {}
  // What the parent does, see LiveProcess. 'f': it forks. A digit: that child writes. 'p': the
  // parent writes.
  void operator()(char what) {
    if (what == 'p') write_page(0, std::byte{50});
    if (what == 'f') {
      for (size_t i = 0; i < children_; ++i) fork_one(i);
    }
    if (what >= '0' && what <= '9') kill(pids_[what - '0'], SIGCONT), wait_for(what - '0');
  }
  // What child `number` writes: page 8 * (number + 1).
  static size_t page_of(size_t number) { return 8 * (number + 1); }

 private:
  void write_page(size_t page, std::byte value) const { memory_[page * kPage] = value; }
  void wait_for(size_t number) const {
    int status = 0;
    waitpid(pids_[number], &status, WUNTRACED);
  }
  void fork_one(size_t number) {
    pids_[number] = fork();
    if (pids_[number] != 0) return wait_for(number);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raise(SIGSTOP);
    for (int turn = 0;; ++turn) {
      write_page(page_of(number), static_cast<std::byte>(100 + turn));
      raise(SIGSTOP);
    }
  }

  std::byte* memory_;
  size_t children_;
  std::array<pid_t, 10> pids_{};
};

TEST_F(LiveRounds, SendOnceWhatProcessesShare) {
  constexpr size_t kChildren = 4;
  touch(memory_, 0, kPages);
  const LiveProcess process(Family(memory_, kChildren));
  process.does('f');
  const uint64_t first = round(process);
  EXPECT_GE(first, kPages * kPage);
  process.does('0');
  process.does('2');
  const uint64_t second = round(process);
  EXPECT_LT(second, kPages * kPage / 2 * kChildren);
  process.does('p');
  process.does('2');
  finish_tree(process);
  ASSERT_EQ(tasks_.size(), 1 + kChildren);
  for (size_t number = 0; number < kChildren; ++number) {
    for (size_t page = 0; page < kPages; ++page) {
      const bool has_written = (number == 0 || number == 2) && page == Family::page_of(number);
      const bool is_shared = page != 0 && !has_written;
      EXPECT_EQ(place(tasks_[number + 1], memory_, page) == place(tasks_[0], memory_, page),
                is_shared)
          << "child " << number << ", page " << page;
    }
  }
  EXPECT_LT(*place(tasks_[2], memory_, 1), first + second) << "sent while it was frozen";
}

TEST_F(LiveRounds, SendSharedPagesAgainAfterTheyWereTakenBack) {
  constexpr size_t kChildren = 4;
  touch(memory_, 0, kPages);
  const LiveProcess process(Family(memory_, kChildren));
  const uint64_t first = round(process);
  process.does('f');
  process.does('p');
  round(process);
  process.does('2');
  round(process);
  live_->take_back(first);
  file_.resize(first);
  round(process);
  finish_tree(process);
  ASSERT_EQ(tasks_.size(), 1 + kChildren);
}

TEST_F(LiveRounds, GiveAChildThePlacesOfItsParent) {
  touch(memory_, 0, kPages);
  const LiveProcess process(Family(memory_, 1));
  const uint64_t first = round(process);
  process.does('f');
  process.does('0');
  finish_tree(process);
  ASSERT_EQ(tasks_.size(), 2U);
  EXPECT_LT(*place(tasks_[1], memory_, 3), first);
  EXPECT_EQ(place(tasks_[1], memory_, 3), place(tasks_[0], memory_, 3));
  EXPECT_GE(*place(tasks_[1], memory_, Family::page_of(0)), first);
}

// A round sends a page for the parent, and then the parent overwrites it. The child still has the
// old page.
TEST_F(LiveRounds, KeepForAChildWhatItsParentHasOverwritten) {
  touch(memory_, 0, kPages);
  const LiveProcess process(Family(memory_, 1));
  process.does('f');
  round(process);
  process.does('p');
  round(process);
  finish_tree(process);
  EXPECT_NE(place(tasks_[1], memory_, 0), place(tasks_[0], memory_, 0));
}

// The parent writes a page after the first round, and shares it by a fork before the second one.
// The second round must send the page.
TEST_F(LiveRounds, SendWhatWasWrittenBeforeItWasShared) {
  touch(memory_, 0, kPages);
  const LiveProcess process(Family(memory_, 2));
  const uint64_t first = round(process);
  process.does('p');
  process.does('f');
  round(process);
  finish_tree(process);
  EXPECT_GE(*place(tasks_[0], memory_, 0), first);
  EXPECT_EQ(place(tasks_[2], memory_, 0), place(tasks_[0], memory_, 0));
}

TEST_F(LiveRounds, SurviveProcessesThatEnd) {
  touch(memory_, 0, kPages);
  pid_t child = 0;
  const LiveProcess process([&](char what) {
    if (what == 'f') {
      child = fork();
      if (child != 0) return;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    if (what == 'k') kill(child, SIGKILL), waitpid(child, nullptr, 0);
  });
  for (int turn = 0; turn < 5; ++turn) {
    process.does('f');
    round(process);
    process.does('k');
    round(process);
  }
  finish_tree(process);
  EXPECT_EQ(tasks_.size(), 1U);
}

TEST_F(LiveRounds, SucceedIfProcessesEndAtAnyMoment) {
  touch(memory_, 0, kPages);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      const pid_t child = fork();
      if (child == 0) {
        touch(memory_, 0, 8);
        _exit(0);
      }
      waitpid(child, nullptr, 0);
    }
  }
  for (int i = 0; i < 40; ++i) {
    const auto index = live_->next_round(pid);
    ASSERT_TRUE(index) << "round " << i << ": " << index.error().message;
    (void)live_->count_written_bytes();
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace ppmr
