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

TEST(JobMetrics, StatesWithoutHostsAreThere) {
  const auto values = values_of({});
  EXPECT_EQ(values.at("ppmr_job_hosts lost"), 0);
  EXPECT_EQ(values.at("ppmr_job_nodes lost"), 0);
}

}  // namespace
}  // namespace ppmr
