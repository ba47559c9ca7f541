#include "daemon/command_line/terminal_style.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(TerminalStyle, ColoursOnlyOnATerminalThatIsNotDumb) {
  EXPECT_TRUE(may_colour(true, nullptr, "xterm"));
  EXPECT_FALSE(may_colour(false, nullptr, "xterm"));
  EXPECT_FALSE(may_colour(true, nullptr, "dumb"));
  EXPECT_FALSE(may_colour(true, nullptr, ""));
  EXPECT_FALSE(may_colour(true, nullptr, nullptr));
}

TEST(TerminalStyle, NoColorForbidsColoursUnlessItIsEmpty) {
  EXPECT_FALSE(may_colour(true, "1", "xterm"));
  EXPECT_FALSE(may_colour(true, "0", "xterm"));
  EXPECT_TRUE(may_colour(true, "", "xterm"));
  EXPECT_TRUE(may_move_cursor(true, "xterm")) << "NO_COLOR forbids only colours";
}

TEST(TerminalStyle, TextWithoutColoursIsUnchanged) {
  EXPECT_EQ(TerminalStyle(true, false).bad("x"), "x");
  EXPECT_EQ(TerminalStyle(true, true).bad("x"), "\x1b[31mx\x1b[0m");
  EXPECT_EQ(TerminalStyle(true, true).good("x"), "\x1b[32mx\x1b[0m");
}

TEST(TerminalStyle, ManualSectionIsKnownForCodesThatNeedAnAction) {
  EXPECT_EQ(manual_section(ExitCode::kMigrationOpen), "TROUBLESHOOTING in ppmr-migrate(8)");
  EXPECT_EQ(manual_section(ExitCode::kPeerFailed), "TROUBLESHOOTING in ppmr(8)");
  EXPECT_EQ(manual_section(ExitCode::kSuccess), "");
  EXPECT_EQ(manual_section(ExitCode::kUsage), "");
  EXPECT_EQ(manual_section(ExitCode::kInterrupted), "");
}

}  // namespace
}  // namespace ppmr
