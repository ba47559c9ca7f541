// `ppmr job run` in an allocation of Slurm: the allocation's hosts, and the step that holds the
// hosts for the job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "restart_loader/criu/child_process.h"

namespace ppmr {

struct SlurmAllocation {
  std::string number;  // SLURM_JOB_ID
  // The job's hosts: the hosts of `--hosts`, or else all hosts, in the order of Slurm.
  std::vector<std::string> hosts;
  bool has_more_hosts = false;  // whether the allocation has hosts that the job does not use
};

// Returns the allocation in which this process runs. `hosts`: the job's hosts, empty for all.
// nullopt: this process runs outside of an allocation. Errors: those of scontrol(1).
Result<std::optional<SlurmAllocation>> find_slurm_allocation(const std::vector<std::string>& hosts);

// Returns the number of ranks on each host: Slurm's tasks per node, else the CPUs of this host.
unsigned slots_of_host();

// A step of Slurm with one `ppmr job hold` on each of the job's hosts. Slurm limits and accounts
// all processes in the step, and ends them with the step. Threads: one.
class SlurmStep {
 public:
  // Starts the step, and does not wait until it runs. Errors: those of pipe(2) and
  // ChildProcess::start().
  static Result<SlurmStep> start(const SlurmAllocation& allocation);
  SlurmStep(SlurmStep&&) = default;
  // Ends the step and waits for its end.
  ~SlurmStep();

 private:
  SlurmStep(UniqueFd input, ChildProcess srun) : input_(std::move(input)), srun_(std::move(srun)) {}

  // The standard input of all processes of the step. They end when this process closes it or ends.
  UniqueFd input_;
  ChildProcess srun_;
};

// `ppmr job hold ALLOCATION`.
struct JobHoldCommand {
  std::string allocation;
  std::string socket;

  // Reports to the agent until standard input ends. Repeats the report, because a new agent does
  // not have it.
  int run() const;
};

}  // namespace ppmr
