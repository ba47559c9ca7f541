#include "jobs/agent/job_metrics.h"

#include <algorithm>
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

// Returns one metric for each state. A state without hosts has the value 0, so that an alert for
// this state always has a value.
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
  MetricFamily age =
      gauge("ppmr_job_epoch_age_seconds",
            "Age of the oldest of the newest epochs of protected jobs: the work that "
            "the loss of a host would cost; 0 without one.");
  MetricFamily rollbacks =
      gauge("ppmr_job_rollbacks", "How often the running jobs were rolled back to an epoch.");
  double oldest_s = 0;
  size_t times = 0;
  for (const json& job : numbers.home) {
    const json protection = job.value("protection", json::object());
    times += protection.value("rollbacks", size_t{0});
    const auto agreed_ns = protection.value("agreed_ns", int64_t{0});
    if (agreed_ns > 0) {
      oldest_s = std::max(oldest_s, static_cast<double>(numbers.now_ns - agreed_ns) * 1e-9);
    }
  }
  add(rollbacks, times);
  add(age, 0);
  age.metric.back().gauge.value = oldest_s;
  return {std::move(jobs),
          by_state(numbers, "hosts", "ppmr_job_hosts",
                   "Hosts of these jobs by their state; a host of two jobs counts twice.",
                   std::initializer_list<HostState>{HostState::kReady, HostState::kSpare,
                                                    HostState::kMoving, HostState::kOut,
                                                    HostState::kInactive, HostState::kLost}),
          by_state(numbers, "nodes", "ppmr_job_nodes", "Nodes of these jobs by their state.",
                   std::initializer_list<NodeState>{NodeState::kReady, NodeState::kMoving,
                                                    NodeState::kLost}),
          std::move(here),
          std::move(out),
          std::move(age),
          std::move(rollbacks)};
}

}  // namespace ppmr
