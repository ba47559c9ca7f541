#include "base/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

TEST(Spawn, TwoPassedFilesCanSwapTheirNumbers) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd in(pipes[0]), out(pipes[1]);
  const auto pid = spawn({.argv = {"sh", "-c", "echo x >&" + std::to_string(in.get())},
                          .files = {{out.get(), in.get()}, {in.get(), out.get()}}});
  ASSERT_TRUE(pid) << pid.error().message;
  int status = -1;
  ASSERT_EQ(waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(status, 0);
  char text[3] = {};
  EXPECT_EQ(read(in.get(), text, 2), 2);
  EXPECT_STREQ(text, "x\n");
}

TEST(Spawn, NamesTheProgramThatItCannotPassAFileTo) {
  const auto pid = spawn({.argv = {"true"}, .files = {{-1, 3}}});
  ASSERT_FALSE(pid);
  EXPECT_NE(pid.error().message.find("pass a file to true"), std::string::npos);
}

}  // namespace
}  // namespace ppmr
