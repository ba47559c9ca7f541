// The metrics of a daemon: the numbers of its status (`ppmr status --json`) and of its tally. Both
// are read when a scraper asks. Nothing else counts, so status and metrics cannot differ.
//
// No label has values that grow with processes, checkpoints or peers.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/metrics/outcome_tally.h"

namespace ppmr {

// The metrics of a status. Numbers that the status lacks are 0.
std::vector<prometheus::MetricFamily> metrics_of_status(const nlohmann::json& status);

// Threads: any, if `status` may be called by any.
class DaemonMetrics final : public prometheus::Collectable {
 public:
  // `tally` outlives this object.
  DaemonMetrics(std::function<nlohmann::json()> status, const OutcomeTally& tally)
      : status_(std::move(status)), tally_(tally) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<nlohmann::json()> status_;
  const OutcomeTally& tally_;
};

}  // namespace ppmr
