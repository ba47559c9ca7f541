#include "restart_loader/criu/relay_marks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "processes/process_identity.h"

namespace ppmr {
namespace {

class RelayMarksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "ppmr-marks-XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory); }

  std::string directory;
};

TEST_F(RelayMarksTest, ContainerCountsAsCreatedOnlyWhileItsMarkExists) {
  EXPECT_EQ(made_container(directory), MadeContainer::kNone);
  ASSERT_TRUE(leave_mark(directory, RelayMark::kRuntimeStarted, read_boot_id()));
  EXPECT_EQ(made_container(directory), MadeContainer::kPartly);
  ASSERT_TRUE(leave_mark(directory, RelayMark::kContainerCreated, read_boot_id()));
  EXPECT_EQ(made_container(directory), MadeContainer::kWhole);
  forget_made_container(directory);
  EXPECT_EQ(made_container(directory), MadeContainer::kNone);
}

// If a relay is killed while it writes the mark, the mark is empty.
TEST_F(RelayMarksTest, ContainerMarkWithoutABootIdIsIgnored) {
  for (const RelayMark mark : {RelayMark::kRuntimeStarted, RelayMark::kContainerCreated}) {
    ASSERT_TRUE(leave_mark(directory, mark, ""));
    EXPECT_EQ(made_container(directory), MadeContainer::kNone);
    ASSERT_TRUE(leave_mark(directory, mark, "\n"));
    EXPECT_EQ(made_container(directory), MadeContainer::kNone);
  }
}

TEST_F(RelayMarksTest, TasksMayHaveRunAfterTheRelayReleasesCriuUnlessCriuItselfGivesUp) {
  EXPECT_FALSE(may_have_run(directory, CriuEnd::kKilled));
  ASSERT_TRUE(leave_mark(directory, RelayMark::kLetGo));
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kByItself));
  ASSERT_TRUE(leave_mark(directory, RelayMark::kResponded));
  EXPECT_FALSE(may_have_run(directory, CriuEnd::kByItself));
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kKilled));
  ASSERT_TRUE(leave_mark(directory, RelayMark::kResumed));
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kByItself));
  forget_restore(directory);
  EXPECT_FALSE(may_have_run(directory, CriuEnd::kKilled));
}

TEST_F(RelayMarksTest, NoTaskHasRunIfCriuWaitedInVainAndHadNotAskedToLetThemRun) {
  ASSERT_TRUE(leave_mark(directory, RelayMark::kLetGo));
  EXPECT_FALSE(may_have_run(directory, CriuEnd::kInVain));
  ASSERT_TRUE(leave_mark(directory, RelayMark::kResumed));
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kInVain));
}

// CRIU gives up if a signal kills the relay between its mark and its answer to CRIU.
TEST_F(RelayMarksTest, NoTaskHasRunIfCriuReportsThatItGaveUpBeforeTheRelease) {
  ASSERT_TRUE(leave_mark(directory, RelayMark::kLetGo));
  std::ofstream log(directory + "/restore.log");
  log << "Error (criu/cr-service.c:61): Can't read request: Connection reset by peer" << std::endl;
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kByItself));
  log << "Error (criu/cr-restore.c:2311): Killing processes because of failure on restore."
      << std::endl;
  EXPECT_TRUE(may_have_run(directory, CriuEnd::kByItself))
      << "it may have failed while it released the tasks";
  log << "Error (criu/cr-restore.c:2203): Aborting restore due to post-restore script ret code -1"
      << std::endl;
  EXPECT_FALSE(may_have_run(directory, CriuEnd::kByItself));
}

}  // namespace
}  // namespace ppmr
