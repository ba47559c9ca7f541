#include "migration/settle/abandoned_checkpoints.h"

#include <gmock/gmock.h>

namespace ppmr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kRecords = {"0123456789abcdef.target", "fedcba9876543210.target"};

TEST(AbandonedCheckpoints, OnlyRecordsOfPresentCheckpointsAreRead) {
  EXPECT_THAT(unrelated_records(kRecords, {"my-server-17-01234567.memory"}),
              ElementsAre("fedcba9876543210.target"));
  EXPECT_THAT(unrelated_records(kRecords, {"a-1-01234567", "b-2-fedcba98"}), IsEmpty());
}

TEST(AbandonedCheckpoints, ForeignNamesBelongToNoRecord) {
  EXPECT_THAT(unrelated_records(kRecords, {"", "backup.tar", "epoch-3"}),
              ElementsAre(kRecords[0], kRecords[1]));
}

}  // namespace
}  // namespace ppmr
