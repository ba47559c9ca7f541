// The metrics of a daemon come from the numbers of its status (`ppmr status --json`) and of its
// tally. The daemon reads both for each scrape. There are no other counters, so status and metrics
// cannot differ.
//
// The number of values of a label does not grow with the number of checkpoints or peers. Only the
// label `process` has a value for each protected process.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/metrics/outcome_tally.h"

namespace ppmr {

// Returns the metrics of a daemon's status. A number that is missing in the status counts as 0.
std::vector<prometheus::MetricFamily> metrics_of_status(const nlohmann::json& status);

// Threads: any, if any thread may call `status`.
class DaemonMetrics final : public prometheus::Collectable {
 public:
  // `tally` must live longer than this object.
  DaemonMetrics(std::function<nlohmann::json()> status, const OutcomeTally& tally)
      : status_(std::move(status)), tally_(tally) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<nlohmann::json()> status_;
  const OutcomeTally& tally_;
};

}  // namespace ppmr
