#include "restart_loader/pager/refused_copy.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(RefusedCopy, PageThatMayHaveMovedIsNotGivenUpAtOnce) {
  EXPECT_EQ(after_refusal(ENOENT, kPageBytes, false), AfterRefusal::kCopyAgain);
  EXPECT_EQ(after_refusal(EAGAIN, kPageBytes, true), AfterRefusal::kReadEvents);
}

TEST(RefusedCopy, PageThatHasGoneWithoutAnEventIsSkipped) {
  EXPECT_EQ(after_refusal(ENOENT, kPageBytes, true), AfterRefusal::kSkipPage);
}

TEST(RefusedCopy, RangeWithABorderIsCopiedInParts) {
  EXPECT_EQ(after_refusal(ENOENT, 2 * kPageBytes, false), AfterRefusal::kCopyLess);
}

TEST(RefusedCopy, PageInPlaceIsSkipped) {
  EXPECT_EQ(after_refusal(EEXIST, kPageBytes, false), AfterRefusal::kSkipPage);
}

TEST(RefusedCopy, EndOfTheTaskIsNoError) {
  EXPECT_EQ(after_refusal(ESRCH, kPageBytes, false), AfterRefusal::kTaskEnded);
  EXPECT_EQ(after_refusal(ENOMEM, kPageBytes, false), AfterRefusal::kFail);
}

}  // namespace
}  // namespace ppmr
