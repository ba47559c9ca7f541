// What `ppmr migrate --dry-run` expects of the move: samples how much memory the processes write,
// and takes the rate of an earlier move to the same target from the records.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "base/number_file.h"
#include "cli/estimate_report.h"
#include "cli/migrate_steps.h"
#include "daemon/command_line/output.h"
#include "migration/source/changed_limits.h"
#include "migration/source/frozen_work.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

double known_rate(const RecordStore& store, const std::string& target) {
  auto records = store.list_for_display(0);
  if (!records) return 0;
  std::erase_if(*records, [&](const OwnershipRecord& record) {
    const PaceFiles pace = pace_files(store.path_of(record.id, record.role));
    return read_number(pace.rate) > 0 || read_number(pace.cpu_share) > 0;
  });
  return rate_of_earlier_moves(*records, target);
}

}  // namespace

// `trees`: numbers of trees that move together.
EstimatedMove Migrate::estimate_together(const std::vector<size_t>& trees,
                                         const std::vector<Result<WriteSample>>& samples,
                                         double rate_bytes_per_s) const {
  EstimatedMove move;
  std::vector<WriteSample> written;
  LiveLimits limits = settings_.live;
  limits.memory_follows = settings_.plan.may_run_before_memory();
  limits.frozen_work = {.processes = 0, .threads = 0};
  for (const size_t i : trees) {
    for (const ProcessStat& process : trees_[i].processes) {
      const auto line = read_command_line(process.pid);
      const bool is_shown = line && !line->empty();
      move.processes.push_back({process.pid, is_shown ? *line : "[" + process.name + "]"});
    }
    move.memory_bytes += memory_bytes_[i];
    limits.frozen_work += frozen_work_of(trees_[i].root);
    for (FrozenMemory& memory : frozen_memory_of(trees_[i].root)) {
      move.frozen.push_back(std::move(memory));
    }
    if (i >= samples.size()) continue;
    if (samples[i]) {
      written.push_back(*samples[i]);
    } else {
      move.why_frozen = samples[i].error().message;
    }
  }
  if (!written.empty() && move.why_frozen.empty()) move.sample = sum_of(written);
  move.estimate = estimate_move({.memory_bytes = move.memory_bytes,
                                 .sample = move.sample,
                                 .rate_bytes_per_s = rate_bytes_per_s,
                                 .limits = limits});
  return move;
}

void Migrate::print_estimate(const RecordStore& store) const {
  const MovePlan& plan = settings_.plan;
  std::vector<Result<WriteSample>> samples;
  if (plan.is_live) {
    std::vector<pid_t> roots;
    for (const ProcessTree& tree : trees_) roots.push_back(tree.root);
    samples = sample_writes(roots, rdma_users_that_show_writes(roots).value_or(std::set<pid_t>()));
  }
  EstimateReport report;
  const std::string address = settings_.endpoint.value("target", "");
  const double rate = known_rate(store, address);
  report.target = target_name_.empty() ? address : target_name_ + " at " + address;
  report.rate_is_measured = rate > 0;
  report.is_post_copy = plan.may_run_before_memory();
  if (plan.is_live) report.promised_downtime = settings_.live.max_downtime;
  std::vector<size_t> all(trees_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (!command_.independent) {
    report.moves.push_back(estimate_together(all, samples, rate));
  } else {
    for (const size_t i : all) report.moves.push_back(estimate_together({i}, samples, rate));
  }
  if (command_.json) {
    print_whole(stdout, "{}\n", json_text(estimate_json(report)));
  } else {
    print_to(stdout, "{}", estimate_text(report));
  }
}

}  // namespace ppmr
