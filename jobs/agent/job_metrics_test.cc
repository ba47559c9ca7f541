#include "jobs/agent/job_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ppmr {
namespace {

using nlohmann::json;

// Returns the values by name and state, such as "ppmr_job_hosts ready".
std::map<std::string, double> values_of(const JobNumbers& numbers) {
  std::map<std::string, double> values;
  for (const auto& family : metrics_of_jobs(numbers)) {
    for (const auto& metric : family.metric) {
      const std::string state = metric.label.empty() ? "" : " " + metric.label[0].value;
      values[family.name + state] = metric.gauge.value;
    }
  }
  return values;
}

TEST(JobMetrics, CountHostsAndNodesOfAllJobsByState) {
  const auto in = [](const char* state) { return json{{"state", state}}; };
  auto values = values_of({.home = {{{"hosts", {in("ready"), in("lost"), in("out")}},
                                     {"nodes", {in("ready"), in("lost")}}},
                                    {{"hosts", {in("ready")}}, {"nodes", {in("moving")}}}},
                           .nodes_here = 3,
                           .is_out = true});
  EXPECT_EQ(values["ppmr_jobs"], 2);
  EXPECT_EQ(values["ppmr_job_hosts ready"], 2);
  EXPECT_EQ(values["ppmr_job_hosts lost"], 1);
  EXPECT_EQ(values["ppmr_job_hosts out"], 1);
  EXPECT_EQ(values["ppmr_job_nodes lost"], 1);
  EXPECT_EQ(values["ppmr_job_nodes moving"], 1);
  EXPECT_EQ(values["ppmr_job_nodes_here"], 3);
  EXPECT_EQ(values["ppmr_job_host_out"], 1);
}

TEST(JobMetrics, OldestEpochOfProtectedJobsCounts) {
  const auto job = [](int64_t agreed_ns, unsigned rollbacks) {
    return json{{"hosts", json::array()},
                {"nodes", json::array()},
                {"protection", {{"agreed_ns", agreed_ns}, {"rollbacks", rollbacks}}}};
  };
  const json other = {{"hosts", json::array()}, {"nodes", json::array()}};
  constexpr int64_t kSecond = 1'000'000'000;
  const auto values =
      values_of({.home = {job(90 * kSecond, 1), job(70 * kSecond, 2), job(0, 0), other},
                 .now_ns = 100 * kSecond});
  EXPECT_DOUBLE_EQ(values.at("ppmr_job_epoch_age_seconds"), 30);
  EXPECT_EQ(values.at("ppmr_job_rollbacks"), 3);
  EXPECT_EQ(values_of({}).at("ppmr_job_epoch_age_seconds"), 0);
}

TEST(JobMetrics, StatesWithoutHostsHaveTheValueZero) {
  const auto values = values_of({});
  EXPECT_EQ(values.at("ppmr_job_hosts lost"), 0);
  EXPECT_EQ(values.at("ppmr_job_nodes lost"), 0);
}

}  // namespace
}  // namespace ppmr
