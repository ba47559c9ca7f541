#include "daemon/command_line/table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "daemon/command_line/terminal_text.h"

namespace ppmr {
namespace {

Table table_with(const std::string& name, const std::string& result) {
  Table table({{"PID", true}, {"NAME"}, {"BYTES", true}, {"RESULT"}});
  table.add({"4711", name, "71.5 MiB", result});
  table.add({"1", "redis", "2 B", "moved"});
  return table;
}

size_t widest(const std::string& text) {
  size_t columns = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) columns = std::max(columns, columns_of(line));
  return columns;
}

TEST(Table, AlignsNumbersToTheRightAndTextToTheLeft) {
  EXPECT_EQ(table_with("worker", "stayed").text(0),
            " PID  NAME       BYTES  RESULT\n"
            "4711  worker  71.5 MiB  stayed\n"
            "   1  redis        2 B  moved\n");
}

TEST(Table, TakesColumnsFromTheWidestTextAndNeverFromNumbers) {
  EXPECT_EQ(table_with("a-long-name-of-a-process", "moved").text(33),
            " PID  NAME          BYTES  RESULT\n"
            "4711  a-long-n>  71.5 MiB  moved\n"
            "   1  redis           2 B  moved\n");
}

TEST(Table, ColumnThatIsWholeIsNotCut) {
  Table table({{.title = "BEGAN", .is_whole = true}, {"NAME"}, {"RESULT"}});
  table.add({"2026-11-29 10:31:09", "a-long-name", "moved"});
  EXPECT_EQ(table.text(36),
            "BEGAN                NAME      RESULT\n"
            "2026-11-29 10:31:09  a-long->  moved\n");
}

TEST(Table, StaysWholeWithoutALimit) {
  const std::string name(200, 'n');
  EXPECT_NE(table_with(name, "moved").text(0).find(name), std::string::npos);
}

TEST(Table, WrappedLinesFitTheWidthWhateverTheNames) {
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "漢";
  const std::string names[] = {std::string(200, 'x'),
                               wide,
                               "\x1b[2J\x1b[31mred",
                               "a\nmoved\tb",
                               "\xff\xfe\x80",
                               "e\xcc\x81\xcc\x81",
                               "\xe2\x80\xae"
                               "abc"};
  for (const std::string& name : names) {
    for (const size_t columns : {60u, 80u, 120u}) {
      const std::string text =
          table_with(name, "stayed: no room at /mnt/in for " + name).text(columns);
      EXPECT_LE(widest(wrapped(text, columns)), columns) << name;
      EXPECT_EQ(text.find("\x1b[2J"), std::string::npos);
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << "a name adds a row: " << name;
    }
  }
}

TEST(Table, KeepsColumnsAlignedBesideWideCharacters) {
  const std::string text = table_with("漢字", "moved").text(0);
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t at = std::min(line.find("moved"), line.find("RESULT"));
    EXPECT_EQ(columns_of(line.substr(0, at)), 23u) << line;
  }
}

}  // namespace
}  // namespace ppmr
