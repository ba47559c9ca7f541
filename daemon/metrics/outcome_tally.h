// Counts the outcomes that other processes report to a daemon through its control socket. `ppmr
// migrate` reports migrations to the source's daemon; supervisors report restarts to the target's
// daemon.
//
// A report has the seconds of each phase, for example {"downtime",{0.5,0.6}}. It may have page
// faults only if the tally counts them.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/duration_buckets.h"
#include "base/mutex.h"
#include "base/result.h"
#include "daemon/control/requests.h"

namespace ppmr {

struct TallyOptions {
  std::string counter;  // name of the metric, with label `result`
  std::string help;
  std::vector<std::string> results;  // the allowed values of the label
  struct Phase {
    std::string field;  // key in NoteOutcome::seconds
    std::string metric;
    std::string help;
  };
  std::vector<Phase> phases;
  std::string fault_metric;  // empty: page faults are not counted
};

// Return the options of the tallies: for the migrations that leave a source, and for the restarts
// at a target.
TallyOptions migrations_tally();
TallyOptions restarts_tally();

// Threads: any.
class OutcomeTally final : public prometheus::Collectable {
 public:
  explicit OutcomeTally(TallyOptions options);

  // Counts a report completely or not at all. Errors: EINVAL for an unknown result or phase, or for
  // a malformed number.
  Status note(const request::NoteOutcome& report);
  // Returns {"moved":N,...} for the status.
  nlohmann::json counts() const;
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const TallyOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, uint64_t> counts_ PPMR_GUARDED_BY(mutex_);
  std::deque<prometheus::Histogram> phases_
      PPMR_GUARDED_BY(mutex_);  // in the order of options_.phases
  prometheus::Histogram faults_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
