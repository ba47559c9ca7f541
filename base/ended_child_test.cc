#include "base/ended_child.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "base/spawn.h"

namespace ppmr {
namespace {

TEST(HasEnded, ChildThatWasKilledHasEndedAndCanStillBeReaped) {
  const auto child = spawn({.argv = {"sleep", "60"}});
  ASSERT_TRUE(child) << child.error().message;
  EXPECT_FALSE(has_ended(*child));
  kill(*child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(*child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(*child));
  EXPECT_TRUE(has_ended(*child)) << "the first look has not reaped it";
  EXPECT_EQ(waitpid(*child, nullptr, 0), *child);
}

}  // namespace
}  // namespace ppmr
