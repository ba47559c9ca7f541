#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ppmr {

// `--protect TIME`, or `--protect auto --mtbf TIME`.
struct ProtectOptions {
  std::chrono::milliseconds every{0};  // 0: not protected; with auto: before the first epoch
  bool is_auto = false;
  std::chrono::milliseconds mtbf{0};  // of a host

  // Returns why the options do not fit together; empty: they fit.
  std::string fault() const;
};

// `ppmr job run`.
struct JobRunCommand {
  std::vector<std::string> hosts;  // empty: the hosts of the Slurm allocation
  unsigned spares = 0;             // how many of the last `hosts` are spares
  // Ranks on each host; 0: the number from Slurm, else the CPUs of this host.
  unsigned slots = 0;
  ProtectOptions protect;
  std::vector<std::string> argv;
  std::string socket;
  bool dry_run = false;
  bool rdma = false;  // the ranks talk over RDMA, if all hosts have it

  int run();
};

// `ppmr job resume DIRECTORY`.
struct JobResumeCommand {
  std::string directory;
  std::vector<std::string> hosts;  // as for JobRunCommand
  unsigned spares = 0;
  ProtectOptions protect;
  bool again = false;  // resumes the job even if it has gone on before
  std::string socket;

  int run();
};

// `ppmr job rsh [OPTIONS] HOST WORDS...`, for MPI launchers. Runs the words with a shell in the job
// node HOST. Ignores the options of ssh that launchers pass.
struct JobRshCommand {
  std::vector<std::string> arguments;

  int run() const;
};

}  // namespace ppmr
