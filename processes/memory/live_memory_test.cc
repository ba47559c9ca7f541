#include "processes/memory/live_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "processes/memory/memory_reader.h"
#include "processes/memory/write_protection.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr size_t kPages = 64;

Result<PageIndex> index_frozen(const std::vector<ProcessIdentity>& tasks) {
  auto index = LiveMemory().index_frozen(tasks);
  if (!index) return failure(index.error());
  EXPECT_EQ(index->sent_bytes, 0U);
  EXPECT_EQ(index->all.memory_bytes, index->unsent.memory_bytes);
  return std::move(index->all);
}

class LiveMemoryTest : public testing::Test {
 protected:
  void SetUp() override { memory_ = map(MAP_PRIVATE); }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  static std::byte* map(int flags) {
    void* mapped =
        mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    madvise(mapped, kPages * kPage, MADV_NOHUGEPAGE);
    return static_cast<std::byte*>(mapped);
  }
  void touch(std::byte* memory, size_t first, size_t pages) {
    for (size_t i = first; i < first + pages; ++i) memory[i * kPage] = std::byte{7};
  }
  // Starts a child that does `work` and then waits.
  ProcessIdentity start_child(const std::function<void()>& work = [] {}) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      work();
      (void)!write(ends[1], "x", 1);
      for (;;) pause();
    }
    children_.push_back(child);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return identify(child).value();
  }
  // Returns the offset of a page of the task, or nullopt if the page is not in the index.
  static std::optional<uint64_t> place(const IndexedTask& task, const std::byte* memory,
                                       size_t page) {
    const uint64_t address = reinterpret_cast<uint64_t>(memory) + page * kPage;
    for (const PageRange& range : task.ranges) {
      if (range.start <= address && address < range.end) {
        return range.offset + (address - range.start);
      }
    }
    return std::nullopt;
  }
  static void expect_in_order(const PageIndex& index) {
    uint64_t next = 0;
    for (const IndexedTask& task : index.tasks) {
      uint64_t end = 0;
      for (const PageRange& range : task.ranges) {
        EXPECT_GE(range.start, end);
        EXPECT_LE(range.offset, next);
        end = range.end;
        next = std::max(next, range.offset + range.bytes());
      }
    }
    EXPECT_EQ(next, index.memory_bytes);
  }

  std::byte* memory_ = nullptr;
  std::vector<pid_t> children_;
};

TEST_F(LiveMemoryTest, ListsPagesInUse) {
  touch(memory_, 3, 2);
  touch(memory_, 10, 1);
  const auto child = start_child();
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  expect_in_order(*index);
  ASSERT_EQ(index->tasks.size(), 1U);
  const IndexedTask& task = index->tasks[0];
  EXPECT_EQ(task.pid, child.pid);
  EXPECT_EQ(task.host_pid, child.pid);
  EXPECT_FALSE(place(task, memory_, 2));
  ASSERT_TRUE(place(task, memory_, 3));
  EXPECT_EQ(*place(task, memory_, 4), *place(task, memory_, 3) + kPage);
  EXPECT_FALSE(place(task, memory_, 5));
  EXPECT_TRUE(place(task, memory_, 10));
}

TEST_F(LiveMemoryTest, ListsASharedPageOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "only root sees the frames of pages";
  touch(memory_, 0, 16);
  const auto first = start_child();
  const auto second = start_child([this] { touch(memory_, 4, 2); });
  // This process writes the pages and so gets copies of its own. The children then share their
  // pages only with each other.
  touch(memory_, 0, 16);
  const auto index = index_frozen({first, second});
  ASSERT_TRUE(index) << index.error().message;
  expect_in_order(*index);
  ASSERT_EQ(index->tasks.size(), 2U);
  for (size_t page = 0; page < 16; ++page) {
    const auto one = place(index->tasks[0], memory_, page);
    const auto other = place(index->tasks[1], memory_, page);
    ASSERT_TRUE(one && other) << page;
    if (page == 4 || page == 5) {
      EXPECT_NE(*one, *other) << page;
    } else {
      EXPECT_EQ(*one, *other) << page;
    }
  }
}

TEST_F(LiveMemoryTest, LeavesOutPagesThatCriuWrites) {
  std::byte* shared = map(MAP_SHARED);
  touch(shared, 0, 4);
  std::byte* locked = nullptr;
  std::byte* only_read = map(MAP_PRIVATE);
  const auto child = start_child([&] {
    touch(memory_, 0, 4);
    syscall(SYS_mlock, memory_, 4 * kPage);  // the sanitizers replace mlock()
    for (size_t i = 0; i < 8; ++i) (void)*static_cast<volatile std::byte*>(only_read + i * kPage);
  });
  locked = memory_;
  const auto index = index_frozen({child, start_child()});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_FALSE(place(index->tasks[0], shared, 0));
  EXPECT_FALSE(place(index->tasks[0], locked, 0));
  if (geteuid() == 0) {
    EXPECT_FALSE(place(index->tasks[0], only_read, 3));
  }
}

// /proc/PID/smaps names the properties behind each mapping, also behind those of files.
TEST_F(LiveMemoryTest, ListsMemoryBeforeALockedFile) {
  const int file = memfd_create("locked", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(kPage)), 0);
  const auto child = start_child([&] {
    touch(memory_, 0, 4);
    std::byte* const next = memory_ + 4 * kPage;
    mmap(next, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    syscall(SYS_mlock, next, kPage);
  });
  close(file);
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_TRUE(place(index->tasks[0], memory_, 3));
  EXPECT_FALSE(place(index->tasks[0], memory_, 4));
}

TEST_F(LiveMemoryTest, LeavesOutMemoryThatWasOnlyRead) {
  const Status scanned = PageTables::open(getpid())->scan({0, 0x1000}, ScanFor::kInUse,
                                                          [](auto&) { return Status{}; });
  if (!scanned && geteuid() != 0) {
    GTEST_SKIP() << "NOT TESTED: pages of zeros: before Linux 6.7 only root sees them";
  }
  const auto child = start_child([&] {
    for (size_t i = 0; i < 8; ++i) (void)*static_cast<volatile std::byte*>(memory_ + i * kPage);
    touch(memory_, 5, 1);
  });
  const auto index = index_frozen({child});
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_FALSE(place(index->tasks[0], memory_, 4));
  EXPECT_TRUE(place(index->tasks[0], memory_, 5));
}

// The list is longer than one answer of the kernel.
TEST_F(LiveMemoryTest, ListsManyScatteredPages) {
  constexpr size_t kMany = 5000;
  constexpr size_t kSparseBytes = kMany * 600 * kPage;
  void* mapped = mmap(nullptr, kSparseBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  madvise(mapped, kSparseBytes, MADV_NOHUGEPAGE);
  auto* sparse = static_cast<std::byte*>(mapped);
  const auto child = start_child([&] {
    for (size_t i = 0; i < kMany; ++i) touch(sparse, i * 600 + i % 7, 1);
  });
  for (const auto& tasks : {std::vector{child}, std::vector{child, start_child()}}) {
    const auto index = index_frozen(tasks);
    ASSERT_TRUE(index) << index.error().message;
    expect_in_order(*index);
    for (size_t i = 0; i < kMany; ++i) {
      ASSERT_TRUE(place(index->tasks[0], sparse, i * 600 + i % 7)) << i;
      ASSERT_FALSE(place(index->tasks[0], sparse, i * 600 + i % 7 + 1)) << i;
    }
    EXPECT_TRUE(parse_page_index(to_bytes(*index)));
  }
  munmap(mapped, kSparseBytes);
}

TEST_F(LiveMemoryTest, NamesTheProcessThatHasEnded) {
  const auto child = start_child();
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  children_.clear();
  const auto index = index_frozen({child});
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, ESRCH);
}

TEST(Overlay, ReplacesPlaces) {
  const auto plain = [](const std::vector<PageRange>& ranges) {
    std::vector<std::array<uint64_t, 3>> all;
    for (const PageRange& range : ranges) all.push_back({range.start, range.end, range.offset});
    return all;
  };
  using Plain = std::vector<std::array<uint64_t, 3>>;
  EXPECT_EQ(plain(overlay({}, {{1, 3, 7}})), (Plain{{1, 3, 7}}));
  EXPECT_EQ(plain(overlay({{1, 9, 100}}, {})), (Plain{{1, 9, 100}}));
  EXPECT_EQ(plain(overlay({{1, 9, 100}}, {{3, 5, 200}})),
            (Plain{{1, 3, 100}, {3, 5, 200}, {5, 9, 104}}));
  EXPECT_EQ(plain(overlay({{2, 4, 0}, {6, 8, 2}}, {{1, 7, 50}, {9, 10, 60}})),
            (Plain{{1, 7, 50}, {7, 8, 3}, {9, 10, 60}}));
  EXPECT_EQ(plain(overlay({{5, 6, 0}}, {{1, 2, 50}, {8, 9, 60}})),
            (Plain{{1, 2, 50}, {5, 6, 0}, {8, 9, 60}}));
  EXPECT_EQ(plain(overlay({{0, 10, 0}}, {{2, 4, kNoPlace}})), (Plain{{0, 2, 0}, {4, 10, 4}}));
}

TEST(Within, KeepsThePlacesInsideOfMappings) {
  const auto kept = within({{1, 5, 10}, {7, 9, 30}}, {{2, 4}, {8, 20}, {30, 40}});
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[0].start, 2U);
  EXPECT_EQ(kept[0].end, 4U);
  EXPECT_EQ(kept[0].offset, 11U);
  EXPECT_EQ(kept[1].start, 8U);
  EXPECT_EQ(kept[1].end, 9U);
  EXPECT_EQ(kept[1].offset, 31U);
  EXPECT_TRUE(within({{1, 5, 10}}, {}).empty());
}

// A process that does what the test asks of it, between rounds.
class LiveProcess {
 public:
  using Work = std::function<void(char what)>;
  explicit LiveProcess(Work work) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (char what = 0; read(ends[1], &what, 1) == 1;) {
        work(what);
        if (write(ends[1], &what, 1) != 1) break;
      }
      _exit(0);
    }
    close(ends[1]);
  }
  ~LiveProcess() {
    close(socket_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void does(char what) const {
    ASSERT_EQ(write(socket_, &what, 1), 1);
    ASSERT_EQ(read(socket_, &what, 1), 1);
  }
  // The work executes another program, which closes the other end.
  void replaces_itself() const {
    char what = 'x';
    ASSERT_EQ(write(socket_, &what, 1), 1);
    ASSERT_EQ(read(socket_, &what, 1), 0);
  }
  void freeze() const {
    int status = 0;
    kill(pid_, SIGSTOP);
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  }
  pid_t pid() const { return pid_; }
  ProcessIdentity identity() const { return identify(pid_).value(); }

 private:
  int socket_ = -1;
  pid_t pid_ = 0;
};

// Reads the rounds as they are sent, and compares the file with the memory of the frozen process.
class LiveRounds : public LiveMemoryTest {
 protected:
  void SetUp() override {
    LiveMemoryTest::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: live rounds: only root may trace processes";
    const auto probe = LiveMemory().next_round(start_child().pid);
    if (!probe && probe.error().errno_value == EOPNOTSUPP) {
      GTEST_SKIP() << "NOT TESTED: live rounds: " << probe.error().message;
    }
  }
  // Returns the bytes of the round.
  uint64_t round(const LiveProcess& process) {
    const auto index = live_->next_round(process.pid());
    EXPECT_TRUE(index) << index.error().message;
    if (!index) return 0;
    receive(*index);
    return index->memory_bytes;
  }
  void receive(const PageIndex& index) {
    auto reader = MemoryReader::create(index, MemoryReader::Tree::kRuns);
    ASSERT_TRUE(reader) << reader.error().message;
    std::vector<std::byte> bytes(index.memory_bytes);
    const Status done = reader->read(0, bytes);
    ASSERT_TRUE(done) << done.error().message;
    file_.insert(file_.end(), bytes.begin(), bytes.end());
  }
  // Returns the bytes that were sent frozen.
  uint64_t finish(const LiveProcess& process, std::vector<ProcessIdentity> others = {}) {
    process.freeze();
    others.insert(others.begin(), process.identity());
    const auto last = live_->index_frozen(others);
    EXPECT_TRUE(last) << last.error().message;
    EXPECT_EQ(last->sent_bytes, file_.size());
    receive(last->unsent);
    EXPECT_EQ(last->all.memory_bytes, file_.size());
    EXPECT_TRUE(parse_page_index(to_bytes(last->all)));
    for (const IndexedTask& task : last->all.tasks) compare(task);
    tasks_ = last->all.tasks;
    task_ = last->all.tasks.front();
    discarded_ = last->discarded;
    return last->unsent.memory_bytes;
  }
  // The children have stopped themselves.
  uint64_t finish_tree(const LiveProcess& process) {
    auto tasks = tasks_of_tree(process.pid()).value();
    tasks.erase(tasks.begin());
    return finish(process, std::move(tasks));
  }
  void compare(const IndexedTask& task) {
    uint64_t pages = 0;
    for (const PageRange& range : task.ranges) {
      std::vector<std::byte> bytes(range.bytes());
      const iovec local{bytes.data(), bytes.size()};
      const iovec remote{reinterpret_cast<void*>(range.start), bytes.size()};
      const ssize_t n = process_vm_readv(task.host_pid, &local, 1, &remote, 1, 0);
      if (n != static_cast<ssize_t>(bytes.size())) continue;  // without permission to read
      for (uint64_t at = 0; at < bytes.size(); at += kPage, ++pages) {
        EXPECT_EQ(std::memcmp(bytes.data() + at, file_.data() + range.offset + at, kPage), 0)
            << "process " << task.host_pid << ", address " << std::hex << range.start + at;
      }
    }
    EXPECT_GT(pages, 0U);
  }

  std::optional<LiveMemory> live_{std::in_place};
  std::vector<std::byte> file_;
  std::vector<IndexedTask> tasks_;  // root first
  IndexedTask task_;
  std::string discarded_;
};

TEST_F(LiveRounds, SendOnlyWhatWasWrittenSince) {
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

// The copy of a page that was discarded is not its content, although nothing was written since.
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

TEST_F(LiveRounds, SendAgainWhatProcessesShareAndWasTakenBack) {
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

// A page is sent for the parent, and written by it; the child still has the page as it was.
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

// What a parent writes and then shares has been sent for neither.
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

TEST_F(LiveRounds, MeetProcessesThatEndAtAnyMoment) {
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

TEST_F(LiveMemoryTest, NamesTheEndOfAProcessWhosePagesAreListed) {
  const auto child = start_child();
  auto tables = PageTables::open(child.pid);
  ASSERT_TRUE(tables) << tables.error().message;
  kill(child.pid, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid), &ended, WEXITED | WNOWAIT), 0);
  const auto start = reinterpret_cast<uint64_t>(memory_);
  const Status listed =
      tables->list({start, start + kPage}, [](uint64_t, PageEntry) { return Status(); });
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().errno_value, ESRCH);
}

TEST_F(LiveRounds, ForgetTheMemoryOfAProgramThatWasReplaced) {
  touch(memory_, 0, kPages);
  const LiveProcess process([](char) { execl("/bin/sleep", "sleep", "100", nullptr); });
  round(process);
  process.replaces_itself();
  round(process);
  finish(process);
  EXPECT_FALSE(place(task_, memory_, 3));
}

TEST_F(LiveRounds, LeaveNothingInTheProcess) {
  const LiveProcess process([](char) {});
  const auto count = [&] { return read_descriptors(process.pid())->size(); };
  const size_t before = count();
  round(process);
  EXPECT_EQ(count(), before);
  const bool shows = read_process_file(process.pid(), "smaps")->find(" uw") != std::string::npos;
  EXPECT_EQ(shows, WriteProtection::is_possible());
  live_.emplace();
  EXPECT_EQ(read_process_file(process.pid(), "smaps")->find(" uw"), std::string::npos);
  process.does('x');
}

// Two trackers of one process would take each other's pages.
TEST_F(LiveRounds, ShareNoProcessWithAnotherTracker) {
  touch(memory_, 0, kPages);
  const LiveProcess process([](char) {});
  round(process);
  LiveMemory other;
  const auto index = other.next_round(process.pid());
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, EBUSY) << index.error().message;
  live_.reset();
  EXPECT_TRUE(other.next_round(process.pid()));
}

// Interrupted system calls go on, unless the kernel itself never restarts them (epoll_wait(2),
// sigtimedwait(2), see signal(7)).
TEST_F(LiveRounds, DisturbNoSystemCall) {
  static const auto sleep_300_ms = [] {
    const timespec time{0, 300'000'000};
    return nanosleep(&time, nullptr);
  };
  const std::vector<std::function<int()>> calls = {
      sleep_300_ms,
      [] { return poll(nullptr, 0, 300); },
      [] {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, nullptr);
        signal(SIGTRAP, SIG_IGN);
        sleep_300_ms();
        struct sigaction action {};
        sigaction(SIGTRAP, nullptr, &action);
        sigset_t now;
        sigprocmask(SIG_BLOCK, nullptr, &now);
        return action.sa_handler == SIG_IGN && sigismember(&now, SIGUSR1) == 1 ? 0 : 1;
      },
      [] {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
        volatile uint64_t sum = 0;
        while (std::chrono::steady_clock::now() < end) sum = sum + 1;
        return 0;
      },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(calls[i]());
    }
    int status = 0;
    int rounds = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (LiveMemory().next_round(pid)) ++rounds;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "call " << i;
    EXPECT_GT(rounds, 0) << "call " << i;
  }
}

volatile sig_atomic_t signals_handled = 0;

// The process ends when it has handled all of them.
TEST_F(LiveRounds, LoseNoSignal) {
  constexpr int kRounds = 20;
  constexpr int kSignalsPerRound = 25;
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &one, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGRTMIN, [](int) { signals_handled = signals_handled + 1; });
    while (signals_handled < kRounds * kSignalsPerRound) sigsuspend(&before);
    _exit(0);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  for (int i = 0; i < kRounds; ++i) {
    std::thread sender([pid] {
      for (int sent = 0; sent < kSignalsPerRound; ++sent) sigqueue(pid, SIGRTMIN, {});
    });
    // The process has not handled all signals yet, so it lives.
    const auto round = LiveMemory().next_round(pid);
    sender.join();
    EXPECT_TRUE(round || i == kRounds - 1) << round.error().message;
  }
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (waitpid(pid, &status, WNOHANG) == 0 && std::chrono::steady_clock::now() < deadline) {
    sched_yield();
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a signal is lost";
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(LiveRounds, RefuseAProcessThatReadsPastThePageTables) {
  const int file = open("/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  if (file < 0) GTEST_SKIP() << "NOT TESTED: O_DIRECT: the file system of /tmp does not support it";
  const LiveProcess process([](char) {});
  close(file);
  const auto index = live_->next_round(process.pid());
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, EOPNOTSUPP);
  EXPECT_NE(index.error().message.find("O_DIRECT"), std::string::npos);
}

}  // namespace
}  // namespace ppmr
