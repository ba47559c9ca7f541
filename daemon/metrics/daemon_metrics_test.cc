#include "daemon/metrics/daemon_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace ppmr {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string page_of(const json& status) {
  return prometheus::TextSerializer().Serialize(metrics_of_status(status));
}

json checkpoint(const char* name, const char* state) { return {{"name", name}, {"state", state}}; }

TEST(DaemonMetrics, ShowTheNumbersOfTheStatusInBaseUnits) {
  const std::string page =
      page_of({{"role", "source"},
               {"bytes", 4097},
               {"open_migrations", {{"count", 3}}},
               {"pool", {{"free", 60}, {"in_use", 4}, {"wait_time_us", 1'500'000}}},
               {"peers", json::array()},
               {"checkpoints", json::array()}});
  EXPECT_THAT(page, HasSubstr("ppmr_transferred_bytes_total 4097\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_migrations_open 3\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_pool_slots{state=\"free\"} 60\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_pool_wait_seconds_total 1.5\n"));
  EXPECT_THAT(page, HasSubstr("role=\"source\""));
}

TEST(DaemonMetrics, HaveTheTimeUntilTheCredentialsEndOnlyIfTheyEnd) {
  json status = {{"role", "source"}, {"peers", json::array()}, {"checkpoints", json::array()}};
  EXPECT_THAT(page_of(status), Not(HasSubstr("expiry")));
  status["credentials_end_s"] = nullptr;
  EXPECT_THAT(page_of(status), Not(HasSubstr("expiry")));
  status["credentials_end_s"] = ::time(nullptr) - 100'000;
  EXPECT_THAT(page_of(status), HasSubstr("ppmr_credentials_expiry_seconds -10000"));
}

TEST(DaemonMetrics, ShowThatTheProgramWasReplaced) {
  json status = {{"role", "source"}, {"peers", json::array()}, {"checkpoints", json::array()}};
  EXPECT_THAT(page_of(status), HasSubstr("ppmr_program_replaced 0\n"));
  status["program"] = {{"replaced", true}};
  EXPECT_THAT(page_of(status), HasSubstr("ppmr_program_replaced 1\n"));
}

TEST(DaemonMetrics, CountCheckpointsAndSessionsByStateButNeverByName) {
  const std::string page = page_of(
      {{"role", "target"},
       {"peers",
        {{{"name", "alpha"}, {"transport", "tcp"}, {"connected", true}, {"silence_ms", 20}},
         {{"name", "beta"}, {"transport", "tcp"}, {"connected", false}, {"silence_ms", 4000}}}},
       {"checkpoints",
        {checkpoint("one", "sealed"), checkpoint("two", "sealed"), checkpoint("three", "open")}}});
  EXPECT_THAT(page, HasSubstr("ppmr_checkpoints{state=\"sealed\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_checkpoints{state=\"failed\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_sessions{transport=\"tcp\",state=\"connected\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_sessions{transport=\"tcp\",state=\"disconnected\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_peer_silence_seconds 4\n"));
  for (const char* name : {"alpha", "beta", "one", "two", "three"}) {
    EXPECT_THAT(page, Not(HasSubstr(std::string("\"") + name + "\"")));
  }
}

TEST(DaemonMetrics, ShowTheNewestEpochOfEachProtectedProcess) {
  json status = {{"role", "source"}, {"peers", json::array()}, {"checkpoints", json::array()}};
  EXPECT_THAT(page_of(status), Not(HasSubstr("ppmr_epoch_age_seconds{")));
  status["protected"] = {{{"name", "db"},
                          {"age_ms", 41'500},
                          {"every_ms", 30'000},
                          {"pause_ms", 25},
                          {"bytes", 1 << 20},
                          {"sent_bytes", 4096}}};
  const std::string page = page_of(status);
  EXPECT_THAT(page, HasSubstr("ppmr_epoch_age_seconds{process=\"db\""));
  EXPECT_THAT(page, HasSubstr(" 41.5\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_epoch_pause_seconds{process=\"db\""));
  EXPECT_THAT(page, HasSubstr(" 0.025\n"));
}

TEST(DaemonMetrics, ShowIntegrityFailuresByTheCheckThatFoundThem) {
  const std::string page = page_of({{"role", "target"},
                                    {"crc_failures", 3},
                                    {"aead_failures", 2},
                                    {"peers", json::array()},
                                    {"checkpoints", json::array()}});
  EXPECT_THAT(page, HasSubstr("ppmr_integrity_failures_total{check=\"crc32c\"} 3\n"));
  EXPECT_THAT(page, HasSubstr("ppmr_integrity_failures_total{check=\"aes-256-gcm\"} 2\n"));
}

}  // namespace
}  // namespace ppmr
