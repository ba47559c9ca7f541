#include "jobs/cli/slurm_step.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/own_path.h"
#include "daemon/command_line/command_error.h"
#include "daemon/control/control_client.h"
#include "jobs/agent/requests.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kScontrolPatience{20};
constexpr std::chrono::milliseconds kEndPatience{10'000};
constexpr std::chrono::milliseconds kHoldTimeout{5'000};
constexpr std::chrono::milliseconds kBetweenReports{5'000};
constexpr std::chrono::seconds kFirstReportPatience{20};  // an agent may be about to start

// Returns whether standard input has ended.
bool input_ends_within(std::chrono::milliseconds time) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, static_cast<int>(time.count())) <= 0) return false;
  char ignored[64];
  return read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0;
}

}  // namespace

Result<std::optional<SlurmAllocation>> find_slurm_allocation(
    const std::vector<std::string>& hosts) {
  const char* number = std::getenv("SLURM_JOB_ID");
  const char* list = std::getenv("SLURM_JOB_NODELIST");
  if (number == nullptr || list == nullptr) return std::nullopt;
  if (!hosts.empty()) {
    return SlurmAllocation{.number = number, .hosts = hosts, .has_more_hosts = true};
  }
  auto output = run_successfully({"scontrol", "show", "hostnames", list}, kScontrolPatience);
  if (!output) return failure(output.error());
  SlurmAllocation allocation{.number = number};
  std::istringstream lines(*output);
  for (std::string line; std::getline(lines, line);) allocation.hosts.push_back(line);
  return allocation;
}

unsigned slots_of_host() {
  // In "2(x3)" or "4,2", the first number belongs to the first host. It counts for all hosts,
  // because the hosts of a job are equal.
  const char* tasks = std::getenv("SLURM_TASKS_PER_NODE");
  const unsigned of_slurm = tasks != nullptr ? static_cast<unsigned>(std::atoi(tasks)) : 0;
  return of_slurm > 0 ? of_slurm : std::max(1U, std::thread::hardware_concurrency());
}

Result<SlurmStep> SlurmStep::start(const SlurmAllocation& allocation) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("create a pipe for", "srun");
  const UniqueFd theirs(ends[0]);
  UniqueFd ours(ends[1]);
  const size_t hosts = allocation.hosts.size();
  std::vector<std::string> argv = {"srun", fmt::format("--nodes={}", hosts),
                                   fmt::format("--ntasks={}", hosts), "--ntasks-per-node=1",
                                   "--job-name=ppmr",
                                   // The step runs beside other steps, with all resources of the
                                   // allocation.
                                   "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none",
                                   // The step outlives hosts that fail.
                                   "--no-kill", "--kill-on-bad-exit=0", "--quiet"};
  if (allocation.has_more_hosts) {
    argv.push_back(fmt::format("--nodelist={}", fmt::join(allocation.hosts, ",")));
  }
  const auto program = own_path();
  if (!program) return failure(program.error());
  argv.insert(argv.end(), {"--", *program, "job", "hold", allocation.number});
  // srun gets its own process group, so that Ctrl-C reaches only the job.
  auto srun = ChildProcess::start({.argv = argv,
                                   .files = {{.ours = theirs.get(), .theirs = STDIN_FILENO}},
                                   .group = SpawnGroup::kOwn});
  if (!srun) return failure(srun.error());
  return SlurmStep(std::move(ours), std::move(*srun));
}

SlurmStep::~SlurmStep() {
  if (!input_) return;  // this object was moved from
  input_.reset();
  pollfd end{.fd = srun_.pidfd(), .events = POLLIN, .revents = 0};
  (void)poll(&end, 1, static_cast<int>(kEndPatience.count()));
}

int JobHoldCommand::run() const {
  const auto deadline = Clock::now() + kFirstReportPatience;
  for (bool known = false;;) {
    auto answer = call(socket, to_request(user_request::Hold{allocation}), kHoldTimeout);
    if (answer) {
      if (Status status = accepted(*answer); !status) {
        return report("job hold", {ExitCode::kFailure, status.error().message}, false);
      }
      known = true;
    } else if (!known && Clock::now() > deadline) {
      return report("job hold",
                    {ExitCode::kDaemonSilent,
                     answer.error().message + " (does `ppmr job agent` run on this host?)"},
                    false);
    }
    if (input_ends_within(known ? kBetweenReports : kBetweenReports / 10)) {
      return to_int(ExitCode::kSuccess);
    }
  }
}

}  // namespace ppmr
