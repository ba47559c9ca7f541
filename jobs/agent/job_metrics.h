// The metrics of a job agent. They come from the data that `ppmr job status` shows, so the two
// cannot differ. The number of values of a label does not grow with the number of jobs or hosts.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace ppmr {

struct JobNumbers {
  std::vector<nlohmann::json> home;  // the jobs of this home, see public_view()
  size_t nodes_here = 0;             // job nodes on this host, of all homes
  bool is_out = false;               // this host is out of the pool for all jobs
  int64_t now_ns = 0;                // Unix time
};

std::vector<prometheus::MetricFamily> metrics_of_jobs(const JobNumbers& numbers);

// Threads: any, if any thread may call `numbers`.
class JobMetrics final : public prometheus::Collectable {
 public:
  explicit JobMetrics(std::function<JobNumbers()> numbers) : numbers_(std::move(numbers)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    return metrics_of_jobs(numbers_());
  }

 private:
  const std::function<JobNumbers()> numbers_;
};

}  // namespace ppmr
