#include "processes/memory/landlock_probe.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <future>
#include <string>
#include <thread>

#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

constexpr uid_t kNobody = 65534;

// Forbids the process to create files: LANDLOCK_ACCESS_FS_MAKE_REG.
bool restrict_self() {
  const uint64_t handled_access_fs = uint64_t{1} << 8;
  const long rules = syscall(444, &handled_access_fs, sizeof(handled_access_fs), 0);
  return rules >= 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(446, rules, 0) == 0;
}

class Child {
 public:
  Child(uid_t uid, bool restricted) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(1);
      if (restricted && !restrict_self()) _exit(1);
      if (write(ends[1], "", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    char byte = 0;
    is_ready_ = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool is_ready() const { return is_ready_; }

 private:
  pid_t pid_ = 0;
  bool is_ready_ = false;
};

TEST(LandlockProbe, FindsRestrictedProcessesOfRootAndOfUsers) {
  if (!has_landlock()) GTEST_SKIP() << "NOT TESTED: the kernel has no Landlock";
  LandlockProbe probe;
  for (const uid_t uid : {uid_t{0}, kNobody}) {
    const Child restricted(uid, true);
    const Child free(uid, false);
    ASSERT_TRUE(restricted.is_ready() && free.is_ready());
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(probe.is_restricted(restricted.pid()), true) << uid;
      EXPECT_EQ(probe.is_restricted(free.pid()), false) << uid;
    }
  }
}

// A domain restricts a thread, and the threads that it starts later.
TEST(LandlockProbe, FindsARestrictedThreadOfAFreeProcess) {
  if (!has_landlock()) GTEST_SKIP() << "NOT TESTED: the kernel has no Landlock";
  const TestProcess process([] {
    std::promise<void> is_restricted;
    std::thread([&is_restricted] {
      if (!restrict_self()) abort();
      is_restricted.set_value();
      for (;;) pause();
    }).detach();
    is_restricted.get_future().wait();
  });
  const auto threads = read_threads(process.pid());
  ASSERT_TRUE(threads);
  ASSERT_EQ(threads->size(), 2u);
  LandlockProbe probe;
  EXPECT_EQ(probe.is_restricted(threads->front()), false);
  EXPECT_EQ(probe.is_restricted(threads->back()), true);
}

// A container has such a pid namespace.
TEST(LandlockProbe, FindsARestrictedProcessInAPidNamespaceOfItsOwn) {
  if (!has_landlock()) GTEST_SKIP() << "NOT TESTED: the kernel has no Landlock";
  for (const bool restricted : {true, false}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const TestProcess outside([&] {
      if (unshare(CLONE_NEWPID) != 0) _exit(1);
      const pid_t inside = fork();
      if (inside != 0) {
        (void)!write(ends[1], &inside, sizeof(inside));
        return;
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (restricted && !restrict_self()) _exit(1);
      (void)!write(ends[1], "", 1);
      for (;;) pause();
    });
    // The two writes come in any order.
    std::array<char, sizeof(pid_t) + 1> told{};
    for (size_t n = 0; n < told.size();) {
      const ssize_t more = read(ends[0], told.data() + n, told.size() - n);
      ASSERT_GT(more, 0);
      n += static_cast<size_t>(more);
    }
    const auto child =
        read_process_file(outside.pid(), "task/" + std::to_string(outside.pid()) + "/children");
    ASSERT_TRUE(child);
    LandlockProbe probe;
    EXPECT_EQ(probe.is_restricted(std::stoi(*child)), restricted);
    close(ends[0]);
    close(ends[1]);
  }
}

TEST(LandlockProbe, DoesNotKnowAboutAProcessInAUserNamespaceOfItsOwn) {
  if (!has_landlock()) GTEST_SKIP() << "NOT TESTED: the kernel has no Landlock";
  const TestProcess process([] {
    if (unshare(CLONE_NEWUSER) != 0) _exit(1);
  });
  EXPECT_EQ(LandlockProbe().is_restricted(process.pid()), std::nullopt);
}

TEST(LandlockProbe, DoesNotKnowAboutAProcessThatHasEnded) {
  if (!has_landlock()) GTEST_SKIP() << "NOT TESTED: the kernel has no Landlock";
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(LandlockProbe().is_restricted(pid), std::nullopt);
}

}  // namespace
}  // namespace ppmr
