#include "processes/memory/asked_attributes.h"

#include <gtest/gtest.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <thread>
#include <utility>

#include "processes/proc_files.h"
#include "processes/test_process.h"

#ifdef __x86_64__
#include <asm/ldt.h>
#endif

namespace ppmr {
namespace {

constexpr int kSetMdwe = 65;  // PR_SET_MDWE, Linux 6.3
constexpr int kGetMdwe = 66;

bool is_kernel(int major, int minor) {
  utsname names{};
  int own_major = 0, own_minor = 0;
  uname(&names);
  sscanf(names.release, "%d.%d", &own_major, &own_minor);
  return std::pair(own_major, own_minor) >= std::pair(major, minor);
}

TEST(AskedAttributes, AreNoneForAPlainProcess) {
  const TestProcess process;
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_FALSE(told->denies_write_execute);
  EXPECT_FALSE(told->has_keyring);
  EXPECT_FALSE(told->has_registered_ring);
  EXPECT_FALSE(told->dispatches_calls);
  EXPECT_FALSE(told->faults_on_cpu_queries);
  EXPECT_FALSE(told->has_segments);
}

TEST(AskedAttributes, FindsAThreadForWhichRdtscIsASignal) {
  const TestProcess process([] {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->faults_on_cpu_queries);
}

TEST(AskedAttributes, FindsAProcessWithSegmentsOfItsOwn) {
#ifdef __x86_64__
  constexpr int kWrite = 1;
  if (syscall(SYS_modify_ldt, 0, nullptr, 0) < 0) {
    GTEST_SKIP() << "NOT TESTED: segments: the kernel has no modify_ldt(2)";
  }
  const TestProcess process([] {
    user_desc segment{};
    segment.limit = 0xfffff;
    segment.seg_32bit = segment.limit_in_pages = segment.useable = 1;
    if (syscall(SYS_modify_ldt, kWrite, &segment, sizeof(segment)) != 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->has_segments);
#else
  GTEST_SKIP() << "NOT TESTED: segments: only x86 has modify_ldt(2)";
#endif
}

// Each thread has its own attributes. The first thread of this process has none.
TEST(AskedAttributes, FindsTheAttributesOfOneThread) {
  const TestProcess process([] {
    std::promise<void> is_set;
    std::thread([&is_set] {
      if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) abort();
      is_set.set_value();
      for (;;) pause();
    }).detach();
    is_set.get_future().wait();
  });
  const auto threads = read_threads(process.pid());
  ASSERT_TRUE(threads);
  ASSERT_GE(threads->size(), 2u) << "ThreadSanitizer adds one, before the last";
  const auto first = ask_attributes(threads->front()), second = ask_attributes(threads->back());
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(first->faults_on_cpu_queries);
  EXPECT_TRUE(second->faults_on_cpu_queries);
}

TEST(AskedAttributes, FindsAProcessThatDeniesWriteExecute) {
  if (prctl(kGetMdwe, 0, 0, 0, 0) < 0) GTEST_SKIP() << "NOT TESTED: MDWE: needs Linux 6.3";
  const TestProcess process([] {
    if (prctl(kSetMdwe, 1, 0, 0, 0) != 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->denies_write_execute);
}

TEST(AskedAttributes, FindsAProcessWithAKeyring) {
  if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0) < 0 &&
      errno == ENOSYS) {
    GTEST_SKIP() << "NOT TESTED: the kernel has no keyrings";
  }
  const TestProcess process([] {
    if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1) < 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->has_keyring);
}

// Returns whether the caller has an io_uring at a registered index, and no descriptor of it.
bool register_ring() {
  constexpr unsigned kRegisterRings = 20;  // IORING_REGISTER_RING_FDS, Linux 5.18
  unsigned parameters[30] = {};            // io_uring_params
  const long ring = syscall(SYS_io_uring_setup, 4, parameters);
  const unsigned long at_any_index[2] = {~0U, static_cast<unsigned long>(ring)};
  const bool is_registered =
      ring >= 0 && syscall(SYS_io_uring_register, ring, kRegisterRings, at_any_index, 1) == 1;
  if (ring >= 0) close(static_cast<int>(ring));
  return is_registered;
}

TEST(AskedAttributes, FindsARingThatIsUsedByARegisteredIndex) {
  if (!is_kernel(6, 3) || !register_ring()) {
    GTEST_SKIP() << "NOT TESTED: registered rings: needs io_uring and Linux 6.3";
  }
  const TestProcess process([] {
    if (!register_ring()) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->has_registered_ring);
}

// The kernel would dispatch an injected call, and the call would end the process.
TEST(AskedAttributes, LeavesAProcessAloneThatDispatchesItsSystemCalls) {
  constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11
  constexpr unsigned long kOn = 1;
  enum : char { kAllowed, kDispatched, kFailed };
  auto* const selector = static_cast<volatile char*>(
      mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool is_set = prctl(kSetDispatch, kOn, 0, 0, selector) == 0;
    *selector = is_set ? kDispatched : kFailed;
    for (;;) continue;
  }
  while (*selector == kAllowed) usleep(1'000);
  const auto told = ask_attributes(pid);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->dispatches_calls, *selector == kDispatched);
  EXPECT_FALSE(read_process_stat(pid)->is_dead());
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(AskedAttributes, IsNothingForAProcessThatHasEnded) {
  TestProcess process;
  const pid_t pid = process.pid();
  process.end();
  EXPECT_FALSE(ask_attributes(pid));
}

}  // namespace
}  // namespace ppmr
