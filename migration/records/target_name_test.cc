#include "migration/records/target_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using testing::HasSubstr;

const TargetName kTwo{"two", "id 2", "/var/lib/ppmr"};

int error_of(const TargetName& known, const TargetName& answering) {
  const Status checked = check_denial(known, answering, "f00d");
  return checked ? 0 : checked.error().errno_value;
}

TEST(TargetName, OnlyTheTargetCanSayThatItHasNoRecord) {
  EXPECT_EQ(error_of(kTwo, kTwo), 0);
  const Status other = check_denial(kTwo, {"three", "id 3", "/var/lib/ppmr"}, "f00d");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().errno_value, EXDEV);
  for (const char* part : {"two (machine ID id 2)", "three (machine ID id 3)",
                           "Mount the target two again", "ppmr migrate --resolve f00d"}) {
    EXPECT_THAT(other.error().message, HasSubstr(part));
  }
}

TEST(TargetName, MachineIdDecidesAboutARenamedNodeAndAboutTwoNodesOfOneName) {
  EXPECT_EQ(error_of(kTwo, {"renamed", "id 2", "/var/lib/ppmr"}), 0);
  EXPECT_EQ(error_of(kTwo, {"two", "id 3", "/var/lib/ppmr"}), EXDEV);
}

TEST(TargetName, NameDecidesIfAMachineIdIsUnknown) {
  for (const std::string known : {"", "id 2"}) {
    for (const std::string answering : {"", "id 2"}) {
      if (!known.empty() && !answering.empty()) continue;
      EXPECT_EQ(error_of({"two", known, ""}, {"two", answering, ""}), 0);
      EXPECT_EQ(error_of({"two", known, ""}, {"three", answering, ""}), EXDEV);
    }
  }
  // The source never received the answer to `prepare`.
  EXPECT_EQ(error_of({}, kTwo), 0);
}

TEST(TargetName, TargetWithAnotherStateDirectoryDoesNotKnowItsRecords) {
  const Status moved = check_denial(kTwo, {"two", "id 2", "/srv/ppmr"}, "f00d");
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().errno_value, EXDEV);
  EXPECT_THAT(moved.error().message, HasSubstr("--state-dir /var/lib/ppmr"));
  EXPECT_THAT(moved.error().message, HasSubstr("/srv/ppmr"));
  EXPECT_EQ(error_of({"two", "id 2", ""}, kTwo), 0);
  EXPECT_EQ(error_of(kTwo, {"two", "id 2", ""}), 0);
}

}  // namespace
}  // namespace ppmr
