#include "processes/memory/asked_attributes.h"

#include <gtest/gtest.h>
#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "processes/test_process.h"

namespace ppmr {
namespace {

constexpr int kSetMdwe = 65;  // PR_SET_MDWE, Linux 6.3
constexpr int kGetMdwe = 66;

TEST(AskedAttributes, AreNoneForAPlainProcess) {
  const TestProcess process;
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_FALSE(told->denies_write_execute);
  EXPECT_FALSE(told->has_keyring);
}

TEST(AskedAttributes, TellsAProcessThatDeniesWriteExecute) {
  if (prctl(kGetMdwe, 0, 0, 0, 0) < 0) GTEST_SKIP() << "needs Linux 6.3";
  const TestProcess process([] {
    if (prctl(kSetMdwe, 1, 0, 0, 0) != 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->denies_write_execute);
}

TEST(AskedAttributes, TellsAProcessWithAKeyring) {
  if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0) < 0 &&
      errno == ENOSYS) {
    GTEST_SKIP() << "the kernel has no keyrings";
  }
  const TestProcess process([] {
    if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1) < 0) abort();
  });
  const auto told = ask_attributes(process.pid());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->has_keyring);
}

TEST(AskedAttributes, IsNothingForAProcessThatHasEnded) {
  TestProcess process;
  const pid_t pid = process.pid();
  process.end();
  EXPECT_FALSE(ask_attributes(pid));
}

}  // namespace
}  // namespace ppmr
