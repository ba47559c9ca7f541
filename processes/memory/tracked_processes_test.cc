// Tracks processes of many kinds, and checks that they are as they were before.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "processes/memory/live_memory_rig.h"
#include "processes/memory/write_protection.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

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

// The process ends when it has handled all signals.
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

// Allows a process only these calls: its filter kills it for any other one.
void allow_only_reads_and_writes() {
  const auto allow = [](unsigned call) {
    return std::array<sock_filter, 2>{sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                                      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  };
  std::vector<sock_filter> code = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : {SYS_read, SYS_write, SYS_rt_sigreturn, SYS_restart_syscall}) {
    for (const sock_filter& step : allow(call)) code.push_back(step);
  }
  code.push_back(sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST_F(LiveRounds, FollowAProcessWhoseFilterWouldKillIt) {
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'f') allow_only_reads_and_writes();
    if (what == 'w') memory_[3 * kPage] = std::byte{9};
  });
  process.does('f');
  const auto status = read_process_file(process.pid(), "status");
  ASSERT_TRUE(status && status->find("Seccomp:\t2") != std::string::npos) << "it has no filter";
  const uint64_t first = round(process);
  process.does('w');
  finish(process);
  EXPECT_GE(*place(task_, memory_, 3), first);
  EXPECT_LT(*place(task_, memory_, 4), first);
  kill(process.pid(), SIGCONT);
  process.does('w');  // the process lives, and its filter still works
  EXPECT_NE(read_process_file(process.pid(), "status")->find("Seccomp:\t2"), std::string::npos);
}

TEST_F(LiveRounds, FollowAProcessOfAnotherUser) {
  constexpr uid_t kNobody = 65534;
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'u') {
      if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
          setresuid(kNobody, kNobody, kNobody) != 0) {
        _exit(1);
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of the user clears it
    }
    if (what == 'w') memory_[3 * kPage] = std::byte{9};
  });
  process.does('u');
  const uint64_t first = round(process);
  process.does('w');
  const uint64_t second = round(process);
  EXPECT_GE(second, kPage);
  EXPECT_LT(second, first / 2);
  finish(process);
  EXPECT_GE(*place(task_, memory_, 3), first);
}

// The kernel takes pages after MADV_FREE at a time of its choice. A write before that keeps the
// page.
TEST_F(LiveRounds, FollowPagesThatTheKernelMayTake) {
  constexpr int kTakeNow = 21;  // MADV_PAGEOUT, newer than some headers
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'f') madvise(memory_ + 3 * kPage, 4 * kPage, MADV_FREE);
    if (what == 'w') memory_[4 * kPage + 1] = std::byte{9};
    if (what == 't') madvise(memory_ + 3 * kPage, 4 * kPage, kTakeNow);
  });
  const uint64_t first = round(process);
  process.does('f');
  round(process);
  process.does('w');
  round(process);
  process.does('t');
  finish(process);  // compares what is in use with the newest copy
  ASSERT_TRUE(place(task_, memory_, 4));
  EXPECT_GE(*place(task_, memory_, 4), first) << "the copy before the write";
  if (place(task_, memory_, 3)) {
    GTEST_SKIP() << "NOT TESTED: pages that the kernel has taken: this kernel keeps them";
  }
  EXPECT_FALSE(place(task_, memory_, 5) || place(task_, memory_, 6)) << "zeros have a content";
}

enum class Look { kWorks, kFails, kThrows };

// Calls another tracker, and then fails if the test asks for that.
class FailingTracker : public WriteTracker {
 public:
  FailingTracker(std::unique_ptr<WriteTracker> real, const Look& look)
      : real_(std::move(real)), look_(look) {}
  Status take_written(const std::vector<AddressRange>& memory, const Visit& visit) override {
    if (Status taken = real_->take_written(memory, visit); !taken) return taken;
    if (look_ == Look::kThrows) throw std::bad_alloc();
    return look_ == Look::kFails ? failure(ENOMEM, "the test asks for it") : Status{};
  }
  Status count_as_written(const AddressRange& range) const override {
    return real_->count_as_written(range);
  }
  WriteRecord record() const override { return real_->record(); }

 private:
  std::unique_ptr<WriteTracker> real_;
  const Look& look_;
};

// After a look that fails, the kernel counts pages as unwritten that no round has.
TEST_F(LiveRounds, SendAllPagesAgainAfterAFailedLook) {
  Look look = Look::kWorks;
  live_.emplace([&](const ProcessIdentity& process) -> Result<std::unique_ptr<WriteTracker>> {
    auto real = WriteTracker::attach(process);
    if (!real) return failure(real.error());
    return std::unique_ptr<WriteTracker>(new FailingTracker(std::move(*real), look));
  });
  touch(memory_, 0, kPages);
  const LiveProcess process([this](char what) {
    if (what == 'a') memory_[3 * kPage] = std::byte{9};
    if (what == 'b') memory_[4 * kPage] = std::byte{9};
  });
  const uint64_t first = round(process);
  process.does('a');
  look = Look::kFails;
  EXPECT_EQ(live_->next_round(process.pid()).error().errno_value, ENOMEM);
  live_->take_back(live_->sent_bytes());
  look = Look::kWorks;
  EXPECT_GE(round(process), kPages * kPage);
  process.does('b');
  look = Look::kThrows;
  EXPECT_THROW((void)live_->next_round(process.pid()), std::bad_alloc);
  live_->take_back(live_->sent_bytes());
  EXPECT_GE(finish(process), kPages * kPage);
  EXPECT_GE(*place(task_, memory_, 3), first);
}

// The tracker needs a descriptor in the process for a moment.
TEST_F(LiveRounds, ReportThatAProcessHasNoDescriptorLeft) {
  if (!WriteProtection::is_possible()) GTEST_SKIP() << "NOT TESTED: soft-dirty bits need none";
  touch(memory_, 0, kPages);
  const LiveProcess process([](char) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
  });
  process.does('l');
  const auto index = live_->next_round(process.pid());
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().errno_value, EMFILE) << index.error().message;
  process.does('x');
}

// Maps, moves and unmaps memory all the time, and counts how often the kernel refuses that.
void change_mappings(std::byte* stack, std::atomic<int>& refused, const std::atomic<bool>& ends) {
  constexpr size_t kPagesMax = 256;
  constexpr size_t kFar = size_t{256} << 20;
  struct Part {
    std::byte* at = nullptr;
    size_t pages = 0;
  };
  std::array<Part, 8> parts;
  std::minstd_rand random;
  const auto draw = [&](size_t count) { return random() % count; };
  while (!ends) {
    Part& part = parts[draw(parts.size())];
    const size_t pages = 1 + draw(kPagesMax);
    void* at = nullptr;
    if (part.at == nullptr || draw(2) == 0) {
      if (part.at != nullptr) munmap(part.at, part.pages * kPage);
      // The kernel maps below the libraries. In a restored process it may map above them.
      void* const wish = stack != nullptr ? stack - kFar + draw(4 * kPagesMax) * kPage : nullptr;
      at = mmap(wish, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
      at = mremap(part.at, part.pages * kPage, pages * kPage, MREMAP_MAYMOVE);
    }
    if (at == MAP_FAILED) {
      ++refused;
      continue;
    }
    part = {static_cast<std::byte*>(at), pages};
    part.at[draw(pages) * kPage] = std::byte{7};
  }
}

// mremap(2) refuses a range with two mappings, and a mapping that is tracked in part becomes two.
TEST_F(LiveRounds, SplitNoMapping) {
  constexpr int kRounds = 300;
  auto* const refused = new (map(MAP_SHARED)) std::atomic<int>(0);
  std::atomic<bool> ends = false;
  int on_stack = 0;
  auto* const stack =
      reinterpret_cast<std::byte*>(reinterpret_cast<uint64_t>(&on_stack) & ~(kPage - 1));
  const LiveProcess process([&](char what) {
    std::byte* const near = what == 's' ? stack : nullptr;
    if (what != 'e') std::thread([=, &ends] { change_mappings(near, *refused, ends); }).detach();
    ends = what == 'e';
  });
  process.does('c');
  process.does('s');
  for (int number = 0; number < kRounds; ++number) {
    const auto index = live_->next_round(process.pid());
    ASSERT_TRUE(index) << index.error().message;
  }
  process.does('e');
  EXPECT_EQ(*refused, 0);
}

TEST(SpaceAround, ReachesToTheNextUntrackedMapping) {
  using Ranges = std::vector<AddressRange>;
  EXPECT_EQ(space_around({}, {{1, 2}}), Ranges());
  EXPECT_EQ(space_around({{10, 20}}, {}), (Ranges{{10, 20}}));
  EXPECT_EQ(space_around({{10, 20}}, {{1, 2}, {30, 40}}), (Ranges{{2, 30}}));
  EXPECT_EQ(space_around({{10, 20}}, {{1, 10}, {20, 40}}), (Ranges{{10, 20}}));
  EXPECT_EQ(space_around({{10, 20}, {22, 24}}, {{1, 2}, {30, 40}}), (Ranges{{2, 30}}));
  EXPECT_EQ(space_around({{10, 20}, {45, 50}}, {{1, 2}, {30, 40}}), (Ranges{{2, 30}, {40, 50}}));
  // The mapping at 14 did not exist when the memory was listed.
  EXPECT_EQ(space_around({{10, 20}}, {{1, 2}, {14, 16}, {30, 40}}), (Ranges{{2, 30}}));
}

}  // namespace
}  // namespace ppmr
