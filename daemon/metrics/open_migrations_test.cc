#include "daemon/metrics/open_migrations.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using nlohmann::json;

json migration(const char* id, const char* state, int64_t since_ns) {
  return {{"id", id}, {"state", state}, {"since_ns", since_ns}};
}

TEST(OpenMigrations, LastReportCounts) {
  OpenMigrations open;
  EXPECT_EQ(open.status().at("count"), 0);
  ASSERT_TRUE(
      open.note({{"migrations", {migration("a1", "ready", 9), migration("b2", "running", 5)}}}));
  EXPECT_EQ(open.status().at("count"), 2);
  EXPECT_EQ(open.status().at("oldest_ns"), 5);
  EXPECT_EQ(open.status().at("migrations").at(0), migration("b2", "running", 5));
  ASSERT_TRUE(open.note({{"migrations", json::array()}}));
  EXPECT_EQ(open.status().at("count"), 0);
  EXPECT_EQ(open.status().at("oldest_ns"), 0);
}

TEST(OpenMigrations, ListsTheOldestAndCountsAll) {
  OpenMigrations open;
  json all = json::array();
  for (int i = 40; i > 0; --i) all.push_back(migration("a", "ready", i));
  ASSERT_TRUE(open.note({{"migrations", all}}));
  EXPECT_EQ(open.status().at("count"), 40);
  EXPECT_EQ(open.status().at("migrations").size(), kOpenMigrationsListed);
  EXPECT_EQ(open.status().at("migrations").at(0).at("since_ns"), 1);
}

TEST(OpenMigrations, RefusesWhatIsNoReportAndKeepsTheLastOne) {
  OpenMigrations open;
  ASSERT_TRUE(open.note({{"migrations", {migration("a1", "ready", 9)}}}));
  for (const json& report : {json::object(), json{{"migrations", {1}}},
                             json{{"migrations", {migration("../x", "ready", 1)}}},
                             json{{"migrations", {migration("a", "\x1b[2J", 1)}}}}) {
    EXPECT_FALSE(open.note(report)) << report;
  }
  EXPECT_EQ(open.status().at("count"), 1);
}

}  // namespace
}  // namespace ppmr
