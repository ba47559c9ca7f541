#include "daemon/command_line/output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

namespace ppmr {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

TEST(PrintTo, DropsOutputForAPipeWithoutReader) {
  ignore_sigpipe();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const File pipe(fdopen(ends[1], "w"), std::fclose);
  EXPECT_NO_THROW(print_to(pipe.get(), "event {}\n", 1));
  EXPECT_NO_THROW(print_to(pipe.get(), "{}\n", std::string(1 << 20, 'x')));
}

TEST(PrintTo, DropsOutputThatTheDeviceRefuses) {
  const File full(std::fopen("/dev/full", "w"), std::fclose);
  ASSERT_NE(full, nullptr);
  setvbuf(full.get(), nullptr, _IONBF, 0);  // unbuffered, like stderr
  EXPECT_NO_THROW(print_to(full.get(), "event {}\n", 1));
}

TEST(PrintTo, FlushesOutputAtOnce) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const File pipe(fdopen(ends[1], "w"), std::fclose);
  print_to(pipe.get(), "{} of {}\n", 1, 2);
  char text[16] = {};
  EXPECT_EQ(read(ends[0], text, sizeof text), 7);
  EXPECT_STREQ(text, "1 of 2\n");
  close(ends[0]);
}

}  // namespace
}  // namespace ppmr
