#include "cli/screen/one_line.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(OneLine, LineBreaksAreShownAndAllElseStays) {
  EXPECT_EQ(one_line("python3 -c 'a\nb'"), "python3 -c 'a\\x0ab'");
  EXPECT_EQ(one_line("\n\n"), "\\x0a\\x0a");
  EXPECT_EQ(one_line("worker"), "worker");
  EXPECT_EQ(one_line(""), "");
}

}  // namespace
}  // namespace ppmr
