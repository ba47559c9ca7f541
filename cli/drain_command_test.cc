#include "cli/drain_command.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;

TEST(Drain, NamesTheMigrationsAndCheckpointsThatItWaitsFor) {
  const json status = {
      {"open_migrations",
       {{"count", 1}, {"migrations", {{{"id", "0123456789"}, {"state", "ready"}}}}}},
      {"checkpoints",
       {{{"name", "web.1"}, {"state", "open"}, {"bytes", 12 << 20}},
        {{"name", "old"}, {"state", "sealed"}, {"bytes", 1}},
        {{"name", "disk"}, {"state", "sealed"}, {"bytes", 0}, {"kept", "writing"}}}}};
  EXPECT_EQ(describe_open_work(status),
            "migration 01234567 (ready), checkpoint web.1 (open, 12.0 MiB), checkpoint disk "
            "(sealed, 0 B)");
}

TEST(Drain, NamesACheckpointThatStillWaitsForTheDisk) {
  json waiting = {{"name", "next"}, {"state", "sealed"}, {"bytes", 0}, {"kept", "no"}};
  EXPECT_EQ(describe_open_work({{"checkpoints", {waiting}}}), "checkpoint next (sealed, 0 B)");
  waiting["keep_error"] = "the disk is full";
  EXPECT_EQ(describe_open_work({{"checkpoints", {waiting}}}), "");
}

TEST(Drain, NamesThreeEntriesAndCountsTheRest) {
  json checkpoints = json::array();
  for (int i = 0; i < 5; ++i) checkpoints.push_back({{"name", "c"}, {"state", "open"}});
  EXPECT_TRUE(describe_open_work({{"checkpoints", checkpoints}}).ends_with(" and 2 more"));
}

TEST(Drain, CountsTheConnectionsIfItCanNameNoWork) {
  EXPECT_EQ(describe_open_work({{"agents", 1}}), "1 connection of ppmr migrate");
  EXPECT_EQ(describe_open_work(json::object()), "");
}

}  // namespace
}  // namespace ppmr
