// What the tests of live memory share: memory with pages in use, processes that execute the
// commands of a test, and the rounds of such a process, received and compared.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>

#include "processes/memory/live_memory.h"
#include "processes/memory/memory_reader.h"
#include "processes/memory/page_tables.h"

namespace ppmr {

inline constexpr uint64_t kPage = kPageBytes;
inline constexpr size_t kPages = 64;

class LiveMemoryTest : public testing::Test {
 protected:
  void SetUp() override { memory_ = map(MAP_PRIVATE); }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  static std::byte* map(int flags, size_t pages = kPages) {
    void* mapped =
        mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    madvise(mapped, pages * kPage, MADV_NOHUGEPAGE);
    return static_cast<std::byte*>(mapped);
  }
  static void read_pages(const std::byte* memory, size_t pages) {
    for (size_t i = 0; i < pages; ++i)
      (void)*static_cast<const volatile std::byte*>(memory + i * kPage);
  }
  // Returns whether memory that was only read has no pages of its own. Kernels of some virtual
  // machines have no common page of zeros.
  static bool has_page_of_zeros() {
    constexpr size_t kMany = 4096;  // the kernel counts pages in batches
    const auto resident_pages = [] {
      uint64_t size = 0, resident = 0;
      std::ifstream("/proc/self/statm") >> size >> resident;
      return resident;
    };
    std::byte* const memory = map(MAP_PRIVATE, kMany);
    const uint64_t before = resident_pages();
    read_pages(memory, kMany);
    const bool is_common = resident_pages() < before + kMany / 2;
    munmap(memory, kMany * kPage);
    return is_common;
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

// A process that executes the commands of a test between rounds.
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
      share_no_page();
      (void)!write(ends[1], "r", 1);
      for (char what = 0; read(ends[1], &what, 1) == 1;) {
        work(what);
        if (write(ends[1], &what, 1) != 1) break;
      }
      _exit(0);
    }
    close(ends[1]);
    char ready = 0;
    EXPECT_EQ(read(socket_, &ready, 1), 1);
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
  // Runs the work, which executes another program. This closes the other end of the socket.
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
  // Gets own copies of the pages that this process shares with its parent, as after execve(2).
  static void share_no_page() {
    const auto memory = lazy_memory(getpid());
    auto tables = PageTables::open(getpid());
    if (!memory || !tables) abort();
    for (const AddressRange& range : *memory) {
      const auto own = [](const ScannedRegion& region) {
        for (uint64_t at = region.range.start; at < region.range.end; at += kPage) {
          // The kernel reads and writes, because sanitizers do not let code touch their own memory.
          char value = 0;
          const iovec copy{&value, 1}, byte{reinterpret_cast<void*>(at), 1};
          if (process_vm_readv(getpid(), &copy, 1, &byte, 1, 0) != 1) continue;
          (void)process_vm_writev(getpid(), &copy, 1, &byte, 1, 0);  // fails for constants
        }
        return Status{};
      };
      if (!tables->find_pages_in_use(range, own)) abort();
    }
  }

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
  // Returns the size of the round in bytes.
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
  // Freezes the process. Returns how many bytes were sent after that.
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
  // Does the same as finish(), for the whole tree. The children have stopped themselves.
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

}  // namespace ppmr
