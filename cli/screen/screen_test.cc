#include "cli/screen/screen.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

std::string text_of(const ScreenLine& line) {
  std::string text;
  for (const Span& span : line) text += span.text;
  return text;
}

std::vector<ScreenLine> numbered(size_t count) {
  std::vector<ScreenLine> lines;
  for (size_t i = 0; i < count; ++i) lines.push_back({{std::to_string(i)}});
  return lines;
}

TEST(Screen, CutLineMarksTheMissingText) {
  const ScreenLine line = {{"abc"}, {"def", Tone::kGood}};
  EXPECT_EQ(text_of(cut(line, 6, Charset::kAscii)), "abcdef");
  EXPECT_EQ(text_of(cut(line, 5, Charset::kAscii)), "abcd>");
  EXPECT_EQ(text_of(cut(line, 3, Charset::kAscii)), "ab>");
  EXPECT_EQ(text_of(cut(line, 1, Charset::kAscii)), ">");
  EXPECT_EQ(text_of(cut(line, 0, Charset::kAscii)), "");
}

TEST(Screen, WindowKeepsTheFirstLineAndCountsTheMissingLines) {
  size_t skipped = 0;
  EXPECT_EQ(window_of(numbered(5), 5, skipped).size(), 5u);
  auto shown = window_of(numbered(10), 5, skipped);
  ASSERT_EQ(shown.size(), 5u);
  EXPECT_EQ(text_of(shown[0]), "0");
  EXPECT_EQ(text_of(shown[1]), "1");
  EXPECT_EQ(text_of(shown[4]), "0 more lines above, 6 below: arrow keys");
  skipped = 100;
  shown = window_of(numbered(10), 5, skipped);
  EXPECT_EQ(skipped, 6u);
  EXPECT_EQ(text_of(shown[0]), "0");
  EXPECT_EQ(text_of(shown[3]), "9");
}

TEST(Screen, WindowHasAtMostTheLinesOfATinyTerminal) {
  for (size_t height = 0; height < 4; ++height) {
    size_t skipped = 7;
    EXPECT_EQ(window_of(numbered(10), height, skipped).size(), height);
  }
}

}  // namespace
}  // namespace ppmr
