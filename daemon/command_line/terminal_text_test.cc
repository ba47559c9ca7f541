#include "daemon/command_line/terminal_text.h"

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
  EXPECT_EQ(wrapped("a line of twenty-one", 20), "a line of twenty-one");
  EXPECT_EQ(wrapped("a line of twenty-one and\nshort\n", 20),
            "a line of twenty-one\n    and\nshort\n");
  EXPECT_EQ(wrapped("/a/path/without/any/space", 20), "/a/path/without/any/\n    space");
  EXPECT_EQ(wrapped("  two columns and more words", 20), "  two columns and\n      more words");
  EXPECT_EQ(wrapped("text", 3), "text") << "the terminal is too narrow to break lines";
  EXPECT_EQ(wrapped("a very long text but no room", 19), "a very long text but no room");
}

TEST(TerminalText, LinesWithALabelContinueBelowTheirText) {
  EXPECT_EQ(wrapped("  pool   3 of 64 slots in use", 20),
            "  pool   3 of 64\n         slots in\n         use");
  EXPECT_EQ(wrapped("         slots of 1 MiB each", 20), "         slots of 1\n         MiB each")
      << "the second line of a label";
}

TEST(TerminalText, PromptKeepsItsLastSpace) {
  EXPECT_EQ(wrapped("Type the name of the node: ", 60), "Type the name of the node: ");
}

TEST(TerminalText, ColoursTakeNoColumns) {
  EXPECT_EQ(wrapped("\x1b[31mppmr commit:\x1b[0m no room", 20),
            "\x1b[31mppmr commit:\x1b[0m no room");
  EXPECT_EQ(columns_of("\x1b[31mred\x1b[0m"), 3u);
}

TEST(TerminalText, WidthOfACharacterDependsOnNoLocale) {
  std::setlocale(LC_CTYPE, "C");
  EXPECT_EQ(columns_of("漢字"), 4u);
  EXPECT_EQ(columns_of("e\xcc\x81"), 1u) << "combining";
}

TEST(TerminalText, NoWrappedLineIsWiderThanTheTerminal) {
  std::string wide;
  for (int i = 0; i < 60; ++i) wide += "日";
  const std::string rows[] = {
      "2026-11-29 02:00:00  node-a  4711 worker  0.330 s  stayed: ä日本 no room at /mnt/in",
      wide,
      "  pool   " + wide + " tail",
      std::string(300, 'x'),
      "                                          far to the right and more",
      "a\ttab\tand\tmore\ttabs\tthan\tany\tterminal\thas\tcolumns\tfor"};
  for (const std::string& row : rows) {
    for (size_t columns = 20; columns < 130; ++columns) {
      std::istringstream lines(wrapped(row, columns));
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(columns_of(line), columns) << line;
        EXPECT_EQ(line.find('\t'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace ppmr
