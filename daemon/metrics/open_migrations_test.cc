#include "daemon/metrics/open_migrations.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using nlohmann::json;

TEST(OpenMigrations, LastReportCounts) {
  OpenMigrations open;
  EXPECT_EQ(open.status().at("count"), 0);
  ASSERT_TRUE(open.note({{{"a1", "ready", 9}, {"b2", "running", 5}}}));
  EXPECT_EQ(open.status().at("count"), 2);
  EXPECT_EQ(open.status().at("oldest_ns"), 5);
  EXPECT_EQ(open.status().at("migrations").at(0),
            json({{"id", "b2"}, {"state", "running"}, {"since_ns", 5}}));
  ASSERT_TRUE(open.note({}));
  EXPECT_EQ(open.status().at("count"), 0);
  EXPECT_EQ(open.status().at("oldest_ns"), 0);
}

TEST(OpenMigrations, ListsTheOldestAndCountsAll) {
  OpenMigrations open;
  request::NoteOpen all;
  for (int i = 40; i > 0; --i) all.migrations.push_back({"a", "ready", i});
  ASSERT_TRUE(open.note(all));
  EXPECT_EQ(open.status().at("count"), 40);
  EXPECT_EQ(open.status().at("migrations").size(), kOpenMigrationsListed);
  EXPECT_EQ(open.status().at("migrations").at(0).at("since_ns"), 1);
}

TEST(OpenMigrations, RefusesAMalformedIdOrStateAndKeepsTheLastReport) {
  OpenMigrations open;
  ASSERT_TRUE(open.note({{{"a1", "ready", 9}}}));
  EXPECT_FALSE(open.note({{{"../x", "ready", 1}}}));
  EXPECT_FALSE(open.note({{{"a", "\x1b[2J", 1}}}));
  EXPECT_EQ(open.status().at("count"), 1);
}

}  // namespace
}  // namespace ppmr
