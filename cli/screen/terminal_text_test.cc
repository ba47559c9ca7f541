#include "cli/screen/terminal_text.h"

#include <gtest/gtest.h>

#include <clocale>
#include <sstream>

namespace ppmr {
namespace {

constexpr Charset kAscii = Charset::kAscii;
constexpr Charset kUtf8 = Charset::kUtf8;

TEST(TerminalText, ControlSequencesOfAPeerAreNotPrintable) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\n\x7f", kUtf8), "a?[2Jb???");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J",
                      kUtf8),
            "?2J")
      << "the one-byte form of ESC [";
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b",
                      kUtf8),
            "a?b")
      << "right-to-left override";
}

TEST(TerminalText, InvalidUtf8IsReplacedByteByByte) {
  EXPECT_EQ(printable("a\xff\xc3", kUtf8), "a??");
  EXPECT_EQ(printable("\xc0\x80\xed\xa0\x80", kUtf8), "?????") << "overlong, surrogate";
  EXPECT_EQ(printable("grün", kUtf8), "grün");
  EXPECT_EQ(printable("grün", kAscii), "gr?n");
}

TEST(TerminalText, CutTextIsNeverWiderThanTheColumns) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  const std::string text = "grün 漢字 end";
  EXPECT_EQ(columns_of(text), 13u);
  for (size_t columns = 0; columns < 13; ++columns) {
    EXPECT_LE(columns_of(cut(text, columns, kUtf8)), columns);
    EXPECT_EQ(columns_of(fitted(text, columns, kUtf8)), columns);
  }
  EXPECT_EQ(cut(text, 13, kUtf8), text);
  EXPECT_EQ(cut("abcdef", 3, kUtf8), "ab…");
  EXPECT_EQ(cut("abcdef", 3, kAscii), "ab>");
  EXPECT_EQ(fitted("ab", 4, kAscii), "ab  ");
}

TEST(TerminalText, LinesWrapAtSpacesAndContinueIndented) {
  EXPECT_EQ(wrapped("one two three\n", 9, 2), "one two\n  three\n");
  EXPECT_EQ(wrapped("short\n\nlines\n", 9, 2), "short\n\nlines\n");
  EXPECT_EQ(wrapped("exactly 9", 9, 2), "exactly 9");
  EXPECT_EQ(wrapped("exactly 9 and", 9, 2), "exactly 9\n  and");
  EXPECT_EQ(wrapped("/a/path/without/spaces", 9, 2), "/a/path/w\n  ithout/\n  spaces");
  EXPECT_EQ(wrapped("    indented words", 13, 4), "    indented\n    words");
  EXPECT_EQ(wrapped("text", 3, 4), "text") << "too narrow for the rule";
}

TEST(TerminalText, NoWrappedLineIsWiderThanTheTerminal) {
  const std::string row =
      "2026-11-29 02:00:00  node-a  4711 worker  0.330 s  stayed: ä日本 no room at /mnt/in";
  for (size_t columns = 10; columns < 100; ++columns) {
    std::istringstream lines(wrapped(row, columns, 4));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), columns) << line;
  }
}

}  // namespace
}  // namespace ppmr
