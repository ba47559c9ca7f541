#include "cli/completion_values.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using Values = std::vector<std::string>;

TEST(CompletionValues, OptionsAndArgumentsHaveKinds) {
  EXPECT_EQ(kind_of_values("migrate", "--pid"), "pids");
  EXPECT_EQ(kind_of_values("protect", "--pid"), "pids");
  EXPECT_EQ(kind_of_values("evacuate", "--mount"), "mounts");
  EXPECT_EQ(kind_of_values("migrate", "--cancel"), "open-migrations");
  EXPECT_EQ(kind_of_values("timeline", ""), "migrations");
  EXPECT_EQ(kind_of_values("status", ""), "mounts");
  EXPECT_EQ(kind_of_values("takeover", ""), "epochs");
}

TEST(CompletionValues, OtherOptionsAndArgumentsHaveNoKind) {
  EXPECT_EQ(kind_of_values("commit", ""), "");
  EXPECT_EQ(kind_of_values("migrate", "--key-file"), "");
  EXPECT_EQ(kind_of_values("migrate", ""), "") << "only options have a kind with any command";
}

TEST(CompletionValues, NothingThatAShellExpandsIsOffered) {
  EXPECT_EQ(offered({"web.1", "a b", "$(reboot)", "`x`", "", "-rf", "a;b", "a\nb", "\x1b[2J", "é"}),
            Values{"web.1"});
}

TEST(CompletionValues, EachValueIsOfferedOnceAndInOrder) {
  EXPECT_EQ(offered({"b", "a", "b"}), (Values{"a", "b"}));
}

}  // namespace
}  // namespace ppmr
