// `ppmr job run` in an allocation of Slurm: its hosts, and the step that holds them for the job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "restart_loader/criu/child_process.h"

namespace ppmr {

struct SlurmAllocation {
  std::string number;              // SLURM_JOB_ID
  std::vector<std::string> hosts;  // for the job: all, in the order of Slurm, or those of `--hosts`
  bool has_more_hosts = false;     // hosts that are not for the job
};

// The allocation in which this process is; `hosts`: the job's hosts, empty for all. nullopt:
// outside of an allocation. Errors: those of scontrol(1).
Result<std::optional<SlurmAllocation>> find_slurm_allocation(const std::vector<std::string>& hosts);

// Ranks on each host: Slurm's tasks per node, else the CPUs of this host.
unsigned slots_of_host();

// A step with one `ppmr job hold` on each of the job's hosts. Slurm limits and accounts what is
// in the step, and ends it. Threads: one.
class SlurmStep {
 public:
  // Does not wait until the step runs. Errors: those of pipe(2) and ChildProcess::start().
  static Result<SlurmStep> start(const SlurmAllocation& allocation);
  SlurmStep(SlurmStep&&) = default;
  // Ends the step and waits for its end.
  ~SlurmStep();

 private:
  SlurmStep(UniqueFd input, ChildProcess srun) : input_(std::move(input)), srun_(std::move(srun)) {}

  // The standard input of all its processes: they end when it is closed, also by our own end.
  UniqueFd input_;
  ChildProcess srun_;
};

// `ppmr job hold ALLOCATION`
struct JobHoldCommand {
  std::string allocation;
  std::string socket;

  // Reports to the agent, again and again in case that it is a new one, until standard input ends.
  int run() const;
};

}  // namespace ppmr
