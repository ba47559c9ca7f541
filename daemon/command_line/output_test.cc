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

TEST(WithoutControls, LeavesTextLineBreaksAndColoursAlone) {
  for (const std::string text :
       {"", "redis 2\t\n", "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xa7",
        "\x1b[31mppmr:\x1b[0m no"}) {
    EXPECT_EQ(without_controls(text), text);
  }
}

TEST(WithoutControls, ShowsControlSequencesAndInvalidBytesAsNumbers) {
  EXPECT_EQ(without_controls("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(without_controls("\x1b[8m\r\x07\x7f"), "\\x1b[8m\\x0d\\x07\\x7f");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "2J"),
            "\\xc2\\x9b2J");  // CSI in one character
  EXPECT_EQ(without_controls("\x9b\xff\xc3"), "\\x9b\\xff\\xc3");
  EXPECT_EQ(without_controls(std::string(1, '\0')), "\\x00");
}

TEST(WithoutControls, ShowsMarksOfDirectionAndUnknownCharactersAsNumbers) {
  EXPECT_EQ(without_controls("a\xe2\x80\xae"
                             "b"),
            "a\\xe2\\x80\\xaeb");
  EXPECT_EQ(without_controls("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
}

TEST(PrintTo, LeavesLinesWholeInAFile) {
  const File file(std::tmpfile(), std::fclose);
  EXPECT_EQ(columns_of_output(file.get()), 0u);
  print_to(file.get(), "{}", std::string(500, 'x'));
  EXPECT_EQ(std::ftell(file.get()), 500);
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
