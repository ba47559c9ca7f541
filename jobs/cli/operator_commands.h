#pragma once

#include <chrono>
#include <string>

#include "jobs/agent/move_limits.h"

namespace ppmr {

// `ppmr job evacuate HOST`.
struct JobEvacuateCommand {
  std::string host;
  std::string to;
  std::chrono::milliseconds wait{0};  // how long to wait for a spare
  MoveLimits limits;
  bool cancel = false;  // aborts the moves in progress, and begins none
  std::string socket;
  bool json = false;

  int run() const;

 private:
  int run_cancel() const;
};

// `ppmr job suspend [JOB]`.
struct JobSuspendCommand {
  std::string job;  // empty: the only job of the user that began on this host
  std::string directory;
  std::string socket;
  bool json = false;

  int run() const;
};

// `ppmr job return HOST`.
struct JobReturnCommand {
  std::string host;
  std::string socket;
  bool json = false;

  int run() const;
};

// `ppmr job status`.
struct JobStatusCommand {
  std::string socket;
  bool json = false;
  bool watch = false;

  int run() const;
};

}  // namespace ppmr
