#include "cli/find_migration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using testing::HasSubstr;

OwnershipRecord record_of(const std::string& beginning, MigrationRole role) {
  OwnershipRecord record;
  record.id = beginning + std::string(32 - beginning.size(), '0');
  record.role = role;
  return record;
}

const std::vector<OwnershipRecord> kRecords = {
    record_of("ab1", MigrationRole::kSource), record_of("ab2", MigrationRole::kSource),
    record_of("ab2", MigrationRole::kTarget), record_of("c", MigrationRole::kTarget)};

TEST(FindMigration, FirstDigitsAreEnough) {
  EXPECT_EQ(choose_id(kRecords, "c", "/records").value(), kRecords[3].id);
  EXPECT_EQ(choose_id(kRecords, kRecords[0].id, "/records").value(), kRecords[0].id);
}

TEST(FindMigration, BothRecordsOfAMoveInsideANodeAreOneMigration) {
  EXPECT_EQ(choose_id(kRecords, "ab2", "/records").value(), kRecords[1].id);
}

TEST(FindMigration, SaysWhyThereIsNone) {
  const auto several = choose_id(kRecords, "ab", "/records");
  ASSERT_FALSE(several);
  EXPECT_EQ(several.error().exit_code, ExitCode::kUsage);
  EXPECT_THAT(several.error().message, HasSubstr("give more digits"));
  EXPECT_THAT(choose_id(kRecords, "d", "/records").error().message, HasSubstr("/records"));
  for (const std::string text : {"", "xyz", "../a", "AB1"}) {
    EXPECT_THAT(choose_id(kRecords, text, "/records").error().message, HasSubstr("is not the ID"));
  }
}

}  // namespace
}  // namespace ppmr
