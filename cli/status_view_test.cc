#include "cli/status_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/version.h"

namespace ppmr {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const MountEntry kMount{"/mnt/in", "/", "fuse.ppmr", "/run/ppmr/x.sock"};

json status_with_bytes(uint64_t bytes) {
  return {{"role", "target"},
          {"pid", 42},
          {"bytes", bytes},
          {"checkpoints", {{{"name", "ck1"}, {"state", "open"}, {"bytes", bytes}, {"files", 3}}}}};
}

TEST(StatusView, RateIsTheGrowthInBytesDividedByTheTime) {
  json now = status_with_bytes(3 << 20);
  add_rates(now, status_with_bytes(1 << 20), std::chrono::milliseconds(500));
  EXPECT_EQ(now["rate_bytes_per_s"], 4 << 20);
  EXPECT_EQ(now["checkpoints"][0]["rate_bytes_per_s"], 4 << 20);
}

TEST(StatusView, CheckpointThatShrankHasRateZero) {
  json now = status_with_bytes(1);
  add_rates(now, status_with_bytes(100), std::chrono::milliseconds(500));
  EXPECT_EQ(now["checkpoints"][0]["rate_bytes_per_s"], 0);
}

TEST(StatusView, TextSaysThatADaemonRunsAnOldProgram) {
  json status = status_with_bytes(1);
  status["program"] = {{"version", kVersion}, {"replaced", true}};
  EXPECT_THAT(status_text(status, kMount), HasSubstr("replaced or removed since it started"));
  status["program"]["replaced"] = false;
  EXPECT_THAT(status_text(status, kMount), testing::Not(HasSubstr("OLD")));
}

TEST(StatusView, TextNamesOpenMigrations) {
  json status = status_with_bytes(1);
  status["open_migrations"] = {{"count", 0}, {"migrations", json::array()}};
  EXPECT_THAT(status_text(status, kMount), testing::Not(HasSubstr("migration")));
  status["open_migrations"] = {
      {"count", 20},
      {"migrations", {{{"id", "0123456789abcdef"}, {"state", "ready"}, {"since_ns", 1}}}}};
  EXPECT_THAT(status_text(status, kMount), HasSubstr("20 migrations: 01234567 ready for "));
}

TEST(StatusView, TextNamesTheMountAndEachCheckpoint) {
  json status = status_with_bytes(3 << 20);
  status["checkpoints"].push_back(
      {{"name", "broken"}, {"state", "failed"}, {"error", "the source went away"}});
  const std::string text = status_text(status, kMount);
  EXPECT_THAT(text, HasSubstr("/mnt/in: target, pid 42"));
  EXPECT_THAT(text, HasSubstr("ck1"));
  EXPECT_THAT(text, HasSubstr("3.0 MiB"));
  EXPECT_THAT(text, HasSubstr("the source went away"));
}

TEST(StatusView, TextSaysWhetherDataIsEncryptedAndWhy) {
  json status = status_with_bytes(1);
  status["peers"] = {{{"name", "node1"},
                      {"security", "tls-psk"},
                      {"encryption", "none"},
                      {"encryption_why", "both sides have --trusted-fabric"}}};
  EXPECT_THAT(status_text(status, kMount),
              HasSubstr("encryption: none (both sides have --trusted-fabric)"));
}

TEST(StatusView, TextOmitsFieldsOfTheWrongType) {
  const json status = {{"role", 5}, {"pid", "x"},      {"bytes", nullptr},
                       {"pool", 3}, {"peers", "none"}, {"checkpoints", {1, 2}}};
  EXPECT_THAT(status_text(status, kMount), HasSubstr("/mnt/in"));
  json with_rates = status;
  add_rates(with_rates, status, std::chrono::seconds(1));
}

}  // namespace
}  // namespace ppmr
