#include "jobs/agent/job_metrics.h"

#include <map>
#include <string>

#include "jobs/agent/host_state.h"

namespace ppmr {
namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;

void add(MetricFamily& family, size_t value, std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = static_cast<double>(value);
  family.metric.push_back(std::move(metric));
}

MetricFamily gauge(const char* name, const char* help) {
  return {name, help, prometheus::MetricType::Gauge, {}};
}

// A state without hosts is 0, so that an alert on it has a value.
template <typename States>
MetricFamily by_state(const JobNumbers& numbers, const char* array, const char* name,
                      const char* help, const States& states) {
  std::map<std::string, size_t> counts;
  for (const json& job : numbers.home) {
    for (const json& entry : job.at(array)) ++counts[entry.at("state").get<std::string>()];
  }
  MetricFamily family = gauge(name, help);
  for (const auto state : states) {
    add(family, counts[to_string(state)], {{"state", to_string(state)}});
  }
  return family;
}

}  // namespace

std::vector<MetricFamily> metrics_of_jobs(const JobNumbers& numbers) {
  MetricFamily jobs = gauge("ppmr_jobs", "Jobs that were started on this host.");
  add(jobs, numbers.home.size());
  MetricFamily here = gauge("ppmr_job_nodes_here", "Job nodes on this host, of all jobs.");
  add(here, numbers.nodes_here);
  MetricFamily out =
      gauge("ppmr_job_host_out", "1: this host was evacuated and takes no nodes of any job.");
  add(out, numbers.is_out ? 1 : 0);
  return {std::move(jobs),
          by_state(numbers, "hosts", "ppmr_job_hosts",
                   "Hosts of these jobs by their state; a host of two jobs counts twice.",
                   std::initializer_list<HostState>{HostState::kReady, HostState::kSpare,
                                                    HostState::kMoving, HostState::kOut,
                                                    HostState::kInactive, HostState::kLost}),
          by_state(numbers, "nodes", "ppmr_job_nodes", "Nodes of these jobs by their state.",
                   std::initializer_list<NodeState>{NodeState::kReady, NodeState::kMoving,
                                                    NodeState::kLost}),
          std::move(here), std::move(out)};
}

}  // namespace ppmr
