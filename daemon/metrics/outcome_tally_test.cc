#include "daemon/metrics/outcome_tally.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;

const prometheus::ClientMetric& only_metric(const std::vector<prometheus::MetricFamily>& families,
                                            const std::string& name) {
  for (const auto& family : families) {
    if (family.name == name && family.metric.size() == 1) return family.metric.front();
  }
  throw std::runtime_error("no metric " + name);
}

request::NoteOutcome report(const std::string& result,
                            std::map<std::string, std::vector<double>> seconds = {}) {
  return {.result = result, .seconds = std::move(seconds), .page_faults = {}};
}

TEST(OutcomeTally, CountsResultsAndDurations) {
  OutcomeTally tally(migrations_tally());
  ASSERT_TRUE(tally.note(report("moved", {{"downtime", {0.3, 0.4}}})));
  ASSERT_TRUE(tally.note(report("stayed")));
  EXPECT_EQ(tally.counts(),
            json({{"copied", 0}, {"lost", 0}, {"moved", 1}, {"open", 0}, {"stayed", 1}}));
  const auto families = tally.Collect();
  const auto& downtime = only_metric(families, "ppmr_migration_downtime_seconds").histogram;
  EXPECT_EQ(downtime.sample_count, 2u);
  EXPECT_DOUBLE_EQ(downtime.sample_sum, 0.7);
  EXPECT_EQ(only_metric(families, "ppmr_migration_dump_seconds").histogram.sample_count, 0u);
}

TEST(OutcomeTally, RefusesUnknownReportsAndDoesNotCountThem) {
  OutcomeTally tally(migrations_tally());
  const json before = tally.counts();
  EXPECT_FALSE(tally.note(report("eaten", {{"downtime", {0.3}}})));
  EXPECT_FALSE(tally.note(report("moved", {{"nap", {0.3}}})));
  EXPECT_FALSE(tally.note(report("moved", {{"dump", {0.3}}, {"seal", {-1}}})));
  EXPECT_FALSE(tally.note(report("moved", {{"dump", {1e300}}})));
  request::NoteOutcome with_faults = report("moved");
  with_faults.page_faults = {{1}, 1};
  EXPECT_FALSE(tally.note(with_faults));
  EXPECT_EQ(tally.counts(), before);
  EXPECT_EQ(only_metric(tally.Collect(), "ppmr_migration_dump_seconds").histogram.sample_count, 0u);
}

TEST(OutcomeTally, TakesTheFaultTimesOfAPager) {
  FaultTimes times;
  // A time that equals a bound belongs to the bucket of this bound.
  times.add(std::chrono::microseconds(10));
  times.add(std::chrono::microseconds(11));
  times.add(std::chrono::seconds(3));
  OutcomeTally tally(restarts_tally());
  request::NoteOutcome complete = report("complete");
  complete.page_faults = {{times.buckets.begin(), times.buckets.end()}, times.sum_s};
  ASSERT_TRUE(tally.note(complete));
  const auto families = tally.Collect();
  const auto& faults = only_metric(families, "ppmr_page_fault_seconds").histogram;
  EXPECT_EQ(faults.sample_count, 3u);
  EXPECT_NEAR(faults.sample_sum, 3.000021, 1e-9);
  EXPECT_EQ(faults.bucket.front().cumulative_count, 1u);
  EXPECT_EQ(faults.bucket[1].cumulative_count, 2u);
  EXPECT_EQ(faults.bucket[kFaultBoundsS.size() - 1].cumulative_count, 2u);
}

}  // namespace
}  // namespace ppmr
