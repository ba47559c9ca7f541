#include "cli/taken_pid.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

MigrationOutcome aborted(const std::string& message) {
  return {ExitCode::kMigrationAborted, message, "", {}};
}

TEST(TakenPid, IsReadFromTheErrorOfCriu) {
  EXPECT_EQ(taken_pid(aborted("process 812: \"Can't fork for 813: File exists\": pid 813 is")),
            813);
}

TEST(TakenPid, OtherErrorsNameNoPid) {
  EXPECT_FALSE(taken_pid(aborted("")));
  EXPECT_FALSE(taken_pid(aborted("Can't fork for ")));
  EXPECT_FALSE(taken_pid(aborted("Can't fork for x: File exists")));
  EXPECT_FALSE(taken_pid(aborted("Can't fork for -4: File exists")));
  EXPECT_FALSE(taken_pid(aborted("Can't fork for 99999999999: File exists")));
  EXPECT_FALSE(taken_pid(aborted("Can't fork for 813: Resource temporarily unavailable")));
}

TEST(TakenPid, OnlyAMoveThatWasAbortedMayBeginAgain) {
  MigrationOutcome open = aborted("Can't fork for 813: File exists");
  open.exit_code = ExitCode::kMigrationOpen;
  EXPECT_FALSE(taken_pid(open));
}

}  // namespace
}  // namespace ppmr
