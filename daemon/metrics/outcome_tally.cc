#include "daemon/metrics/outcome_tally.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;
using prometheus::MetricFamily;
using prometheus::MetricType;

// This is longer than --timeout of `ppmr migrate` allows.
constexpr double kSecondsMax = 7 * 24 * 3600.0;

template <size_t kCount>
prometheus::Histogram::BucketBoundaries bounds(const std::array<double, kCount>& values) {
  return {values.begin(), values.end()};
}

bool is_duration(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

MetricFamily histogram(const std::string& name, const std::string& help,
                       const prometheus::Histogram& values) {
  return {name, help, MetricType::Histogram, {values.Collect()}};
}

}  // namespace

TallyOptions migrations_tally() {
  return {"ppmr_migrations_total",
          "Migrations that ppmr migrate or evacuate began here, by result.",
          {"moved", "copied", "stayed", "lost", "open"},
          {{"downtime", "ppmr_migration_downtime_seconds",
            "From the freeze of a process tree until it runs at the target."},
           {"dump", "ppmr_migration_dump_seconds",
            "From the freeze until everything is written into the mount."},
           {"seal", "ppmr_migration_seal_seconds",
            "From the end of the dump until the target has verified everything."},
           {"restart", "ppmr_migration_restart_seconds",
            "From the end of the seal until the process tree runs at the target."}},
          ""};
}

TallyOptions restarts_tally() {
  return {"ppmr_restarts_total",
          "Restarts of process trees here, by what happened: each running one becomes complete or "
          "lost.",
          {"running", "complete", "failed", "lost"},
          {{"restart", "ppmr_restart_seconds",
            "From the seal of a checkpoint until its process tree runs here."}},
          "ppmr_page_fault_seconds"};
}

OutcomeTally::OutcomeTally(TallyOptions options)
    : options_(std::move(options)), faults_(bounds(kFaultBoundsS)) {
  for (const std::string& result : options_.results) counts_[result] = 0;
  for (size_t i = 0; i < options_.phases.size(); ++i) phases_.emplace_back(bounds(kPhaseBoundsS));
}

Status OutcomeTally::note(const request::NoteOutcome& report) {
  const std::string& result = report.result;
  std::vector<std::pair<size_t, double>> observed;
  for (const auto& [field, values] : report.seconds) {
    const auto phase =
        std::find_if(options_.phases.begin(), options_.phases.end(),
                     [&field = field](const auto& candidate) { return candidate.field == field; });
    if (phase == options_.phases.end()) {
      return failure(EINVAL, "count the outcome '" + result + "': unknown phase '" + field + "'");
    }
    for (const double value : values) {
      if (!is_duration(value) || value > kSecondsMax) {
        return failure(EINVAL,
                       "count the outcome '" + result + "': '" + field + "' is not a duration");
      }
      observed.emplace_back(phase - options_.phases.begin(), value);
    }
  }
  std::vector<double> buckets;
  double sum_s = 0;
  if (report.page_faults) {
    const std::vector<uint64_t>& counts = report.page_faults->buckets;
    sum_s = report.page_faults->sum_s;
    if (options_.fault_metric.empty() || counts.size() != kFaultBoundsS.size() + 1 ||
        !is_duration(sum_s)) {
      return failure(EINVAL, "count the outcome '" + result + "': the page faults are malformed");
    }
    buckets.assign(counts.begin(), counts.end());
  }
  MutexLock lock(mutex_);
  const auto count = counts_.find(result);
  if (count == counts_.end())
    return failure(EINVAL, "count the outcome '" + result + "': unknown result");
  ++count->second;
  for (const auto& [phase, value] : observed) phases_[phase].Observe(value);
  if (!buckets.empty()) faults_.ObserveMultiple(buckets, sum_s);
  return {};
}

json OutcomeTally::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

std::vector<MetricFamily> OutcomeTally::Collect() const {
  MutexLock lock(mutex_);
  MetricFamily outcomes{options_.counter, options_.help, MetricType::Counter, {}};
  for (const auto& [result, count] : counts_) {
    prometheus::ClientMetric metric;
    metric.label = {{"result", result}};
    metric.counter.value = static_cast<double>(count);
    outcomes.metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> families{std::move(outcomes)};
  for (size_t i = 0; i < options_.phases.size(); ++i) {
    families.push_back(histogram(options_.phases[i].metric, options_.phases[i].help, phases_[i]));
  }
  if (!options_.fault_metric.empty()) {
    families.push_back(
        histogram(options_.fault_metric,
                  "Page faults of restored processes: from the kernel's report to the answer. "
                  "Counted when all memory of a process tree is in place.",
                  faults_));
  }
  return families;
}

}  // namespace ppmr
