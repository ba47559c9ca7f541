#include "jobs/cli/launch_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/control/control_client.h"
#include "jobs/agent/job_agent.h"
#include "jobs/agent/requests.h"
#include "jobs/cli/mpi_environment.h"
#include "jobs/cli/slurm_step.h"
#include "jobs/command/command_client.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kStartTimeout{180'000};
// This must be long enough for the hosts to read the memory of all nodes from files.
constexpr std::chrono::hours kResumeTimeout{24};
// The exit code after a suspension: EX_TEMPFAIL of sysexits.h.
constexpr int kSuspendedExitCode = 75;
constexpr milliseconds kCheckTimeout{60'000};
constexpr milliseconds kConnectTimeout{20'000};
// This is longer than the agent waits for the job node.
constexpr milliseconds kReconnectTimeout{30'000};
constexpr std::chrono::seconds kResumptionPatience{120};
// While a new agent replaces the old one, requests fail for a moment.
constexpr int kEndAttempts = 10;
constexpr std::chrono::milliseconds kBetweenAttempts{500};

int fail(const CommandError& error) { return report("job run", error, false); }

void tell(const std::string& text) { print_to(stderr, "ppmr job run: {}\n", text); }

// The destructor ends the job, even if its command was not started. Threads: one.
class Job {
 public:
  Job(std::string socket, std::string id) : socket_(std::move(socket)), id_(std::move(id)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    for (int attempt = 0; attempt < kEndAttempts; ++attempt) {
      if (call(socket_, to_request(user_request::End{{id_}}), kStartTimeout)) return;
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    // If all attempts fail, the agent ends the job when it notices the end of this process.
  }

  // Returns an error if the agent no longer has the job. Ignores an agent that does not answer,
  // because it may be about to return.
  Result<CommandNews> check() {
    auto answer = call(socket_, to_request(user_request::Exists{{id_}}), kConnectTimeout);
    if (!answer) return CommandNews::kNone;
    if (answer->value("ok", false)) {
      // A connection from before the rollback does not show how far the job node is.
      if (rollbacks_of(*answer) != rollbacks_) return CommandNews::kRolledBack;
      const bool stands_still = answer->value("stands_still", false);
      return stands_still ? CommandNews::kStandsStill : CommandNews::kNone;
    }
    if (answer->value("errno", 0) != ENOENT) return CommandNews::kNone;
    is_suspended_ = answer->value("suspended", false);
    return failure(ECANCELED, "the agent has ended the job: " + answer->value("error", ""));
  }

  // Returns whether the agent has ended the job because it was suspended.
  bool is_suspended() const { return is_suspended_; }

  void note_standstill(const std::string& command, const ClientState& state) const {
    const json launcher = {{"command", command}, {"state", to_text(state)}};
    // If this request fails, the agent does not suspend the job, and the job goes on.
    (void)call(socket_, to_request(user_request::Standstill{id_, launcher}), kConnectTimeout);
  }

  // Connects to the first node again. Errors: EAGAIN while the nodes are being rolled back; other
  // errors of the agent.
  Result<UniqueFd> reconnect() {
    ControlCall request;
    const Status sent =
        request.send(socket_, to_request(user_request::Reconnect{{id_}}), kReconnectTimeout);
    if (!sent) return failure(sent.error());
    auto answer = request.answer(kReconnectTimeout);
    if (!answer) return failure(answer.error());
    if (Status status = accepted(*answer); !status) return failure(status.error());
    UniqueFd connection = request.descriptor();
    if (!connection) return failure(EPROTO, "the agent sent no connection to the job");
    rollbacks_ = rollbacks_of(*answer);
    return connection;
  }

 private:
  static uint64_t rollbacks_of(const json& answer) { return answer.value("rollbacks", 0); }

  const std::string socket_;
  const std::string id_;
  uint64_t rollbacks_ = 0;  // number of rollbacks of the job when the agent made the connection
  bool is_suspended_ = false;
};

struct AgentAnswer {
  json answer;
  UniqueFd connection;  // to the first node
};

// Asks the agent to start a job, or to let a suspended job go on.
CommandResult<AgentAnswer> ask_agent(const std::string& socket, const json& request,
                                     milliseconds patience) {
  ControlCall start;
  Status sent = start.send(socket, request, kConnectTimeout);
  auto answer = sent ? start.answer(patience) : Result<json>(failure(sent.error()));
  if (!answer) {
    return command_failure(ExitCode::kDaemonSilent,
                           answer.error().message + " (does `ppmr job agent` run on this host?)");
  }
  if (Status status = accepted(*answer); !status) {
    return command_failure(ExitCode::kFailure, status.error().message);
  }
  return AgentAnswer{std::move(*answer), start.descriptor()};
}

int check_hosts(const std::string& socket, const std::vector<std::string>& hosts) {
  auto answer = call(socket, to_request(user_request::Check{hosts}), kCheckTimeout);
  if (!answer) return fail({ExitCode::kDaemonSilent, answer.error().message});
  if (Status status = accepted(*answer); !status) {
    return fail({ExitCode::kFailure, status.error().message});
  }
  bool all = true;
  for (const json& host : answer->at("hosts")) {
    const std::string problem = host.at("problem");
    all = all && problem.empty();
    print_to(stdout, "{}: {}\n", host.at("host").get<std::string>(),
             problem.empty() ? "can have job nodes" : problem);
  }
  return to_int(all ? ExitCode::kSuccess : ExitCode::kFailure);
}

// Follows the job's command to its end. Returns the exit code.
int follow(const std::string& socket, const std::string& id, CommandRequest request,
           UniqueFd connection, std::optional<ClientState> state) {
  Job job(socket, id);
  const std::string command = request.resumption->id;
  const auto end = run_command_in_job_node(
      std::move(connection), std::move(request),
      {.check = [&job] { return job.check(); },
       .stand_still = [&](const ClientState& now) { job.note_standstill(command, now); },
       .state = std::move(state),
       .reconnect = [&job] { return job.reconnect(); },
       .tell = tell});
  if (end) return end->shell_code();
  // If the agent has ended the job, its answer has the reason.
  const auto known = job.check();
  if (job.is_suspended()) {
    tell(known.error().message);
    return kSuspendedExitCode;
  }
  return fail({ExitCode::kFailure, (known ? end.error() : known.error()).message});
}

}  // namespace

std::string ProtectOptions::fault() const {
  if (is_auto && mtbf.count() == 0) {
    return "--protect auto needs --mtbf TIME: how long a host runs until it fails, on average";
  }
  if (!is_auto && mtbf.count() > 0) return "--mtbf needs --protect auto";
  return "";
}

int JobRunCommand::run() {
  const std::string fault = protect.fault();
  if (!fault.empty()) return fail({ExitCode::kUsage, fault});
  const auto allocation = find_slurm_allocation(hosts);
  if (!allocation) return fail({ExitCode::kFailure, allocation.error().message});
  if (*allocation) hosts = (*allocation)->hosts;
  if (hosts.empty()) {
    return fail({ExitCode::kUsage,
                 "no hosts: name them with --hosts, or run inside an allocation of Slurm (sbatch "
                 "--no-kill, salloc --no-kill)"});
  }
  if (spares >= hosts.size()) {
    return fail(
        {ExitCode::kUsage,
         fmt::format("--spares {} leaves none of the {} hosts for the job", spares, hosts.size())});
  }
  if (dry_run) return check_hosts(socket, hosts);
  const std::vector<std::string> working(hosts.begin(), hosts.end() - spares);
  const std::vector<std::string> spare(hosts.end() - spares, hosts.end());

  std::optional<SlurmStep> step;  // declared first, so that it ends after the job
  if (*allocation) {
    auto started = SlurmStep::start(**allocation);
    if (!started) return fail({ExitCode::kFailure, started.error().message});
    step.emplace(std::move(*started));
  }
  const user_request::Run wanted{.hosts = working,
                                 .spares = spare,
                                 .allocation = *allocation ? (*allocation)->number : "",
                                 .protect = protect.every,
                                 .mtbf = protect.mtbf,
                                 .rdma = rdma};
  auto started = ask_agent(socket, to_request(wanted), kStartTimeout);
  if (!started) return fail(started.error());
  const std::string id = started->answer.at("job");
  const bool has_rdma = started->answer.at("rdma");
  if (rdma) {
    const std::string why = started->answer.at("no_rdma");
    tell(has_rdma ? "ranks use RDMA" : "ranks use TCP, not RDMA: " + why);
  }
  CommandRequest request{
      .token = started->answer.at("token"),
      .argv = {"/bin/sh", "-c", start_script(slots > 0 ? slots : slots_of_host()), "sh"},
      .environment = job_environment(id, environ, has_rdma ? Transport::kRdma : Transport::kTcp),
      .directory = std::filesystem::current_path().string()};
  request.argv.insert(request.argv.end(), argv.begin(), argv.end());
  // The command survives rollbacks and suspensions of the job, but its connection does not.
  request.resumption = Resumption{.id = new_command_id(), .patience = kResumptionPatience};
  return follow(socket, id, std::move(request), std::move(started->connection), {});
}

int JobResumeCommand::run() {
  const auto fail = [](const CommandError& error) { return report("job resume", error, false); };
  const std::string fault = protect.fault();
  if (!fault.empty()) return fail({ExitCode::kUsage, fault});
  const auto allocation = find_slurm_allocation(hosts);
  if (!allocation) return fail({ExitCode::kFailure, allocation.error().message});
  if (*allocation) hosts = (*allocation)->hosts;
  if (hosts.empty() || spares >= hosts.size()) {
    return fail(
        {ExitCode::kUsage,
         "name as many hosts as the job has nodes with --hosts, and its spares behind them, "
         "or run inside an allocation of Slurm"});
  }
  std::optional<SlurmStep> step;  // declared first, so that it ends after the job
  if (*allocation) {
    auto started = SlurmStep::start(**allocation);
    if (!started) return fail({ExitCode::kFailure, started.error().message});
    step.emplace(std::move(*started));
  }
  const user_request::Resume wanted{
      .directory = std::filesystem::absolute(directory).lexically_normal().string(),
      .hosts = {hosts.begin(), hosts.end() - spares},
      .spares = {hosts.end() - spares, hosts.end()},
      .allocation = *allocation ? (*allocation)->number : "",
      .protect = protect.every,
      .mtbf = protect.mtbf,
      .again = again};
  auto resumed = ask_agent(socket, to_request(wanted), kResumeTimeout);
  if (!resumed) return fail(resumed.error());
  const json& launcher = resumed->answer.at("launcher");
  auto state = parse_client_state(launcher.value("state", ""));
  if (!state) return fail({ExitCode::kFailure, state.error().message});
  // The job node runs this command already, so it ignores `argv`.
  CommandRequest request{
      .token = resumed->answer.at("token"), .argv = {"/bin/false"}, .directory = "/"};
  request.resumption =
      Resumption{.id = launcher.value("command", ""), .patience = kResumptionPatience};
  return follow(socket, resumed->answer.at("job"), std::move(request),
                std::move(resumed->connection), std::move(*state));
}

int JobRshCommand::run() const {
  const auto failed = [](const std::string& message) {
    return report("job rsh", {ExitCode::kFailure, message}, false);
  };
  auto word = arguments.begin();
  while (word != arguments.end() && word->starts_with('-')) {
    const bool has_value = *word == "-l" || *word == "-p" || *word == "-o";
    word += has_value && word + 1 != arguments.end() ? 2 : 1;
  }
  if (word == arguments.end()) return failed("no host was named");
  const std::string host = *word++;
  std::string line;
  for (; word != arguments.end(); ++word) line += (line.empty() ? "" : " ") + *word;
  std::ifstream file(kTokenFile);
  std::string token;
  if (!(file >> token))
    return failed("only for use in job nodes: there is no " + std::string(kTokenFile));
  auto socket = connect_to_job_node(host, kConnectTimeout);
  if (!socket) return failed(socket.error().message);
  CommandRequest request{.token = token, .argv = {"/bin/sh", "-c", line}, .directory = "/"};
  request.environment = environment_for_daemons(environ);
  auto end = run_command_in_job_node(std::move(*socket), request);
  if (!end) return failed(end.error().message);
  return end->shell_code();
}

}  // namespace ppmr
