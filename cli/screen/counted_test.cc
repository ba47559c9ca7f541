#include "cli/screen/counted.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(Counted, OneThingIsSingularAndAllOtherNumbersArePlural) {
  EXPECT_EQ(counted(0, "stall"), "0 stalls");
  EXPECT_EQ(counted(1, "stall"), "1 stall");
  EXPECT_EQ(counted(2, "parked reader"), "2 parked readers");
  EXPECT_EQ(counted(1, "process"), "1 process");
  EXPECT_EQ(counted(3, "process"), "3 processes");
}

}  // namespace
}  // namespace ppmr
