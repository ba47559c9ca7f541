#pragma once

#include <string>
#include <vector>

namespace ppmr {

// `ppmr job run`
struct JobRunCommand {
  std::vector<std::string> hosts;  // empty: those of the Slurm allocation
  unsigned spares = 0;             // the last ones of `hosts`
  unsigned slots = 0;  // ranks on each host; 0: what Slurm says, else the CPUs of this host
  std::vector<std::string> argv;
  std::string socket;
  bool dry_run = false;

  int run();
};

// `ppmr job rsh [OPTIONS] HOST WORDS...`, for MPI launchers: runs the words with a shell in another
// node of the job. Ignores the options of ssh that launchers give.
struct JobRshCommand {
  std::vector<std::string> arguments;

  int run() const;
};

}  // namespace ppmr
