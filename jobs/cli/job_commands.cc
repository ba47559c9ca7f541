#include "jobs/cli/job_commands.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "base/host_name.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/size_option.h"
#include "jobs/agent/job_protection.h"
#include "jobs/cli/agent_command.h"
#include "jobs/cli/launch_commands.h"
#include "jobs/cli/operator_commands.h"
#include "jobs/cli/slurm_step.h"
#include "jobs/command/job_init.h"
#include "migration/source/changed_limits.h"
#include "processes/memory/slow_down.h"

namespace ppmr {
namespace {

// Returns the part of the host's name before the first dot. Users type this part.
std::string short_host_name() {
  const std::string name = host_name();
  return name.substr(0, name.find('.'));
}

template <typename Command>
std::shared_ptr<Command> make_command(CLI::App& sub, int& exit_code) {
  auto command = std::make_shared<Command>();
  sub.callback([command, &exit_code] { exit_code = command->run(); });
  return command;
}

void add_socket(CLI::App& sub, std::string& socket) {
  socket = kAgentSocket;
  sub.add_option("--socket", socket, "socket of the agent of this host")->capture_default_str();
}

void add_agent(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand("agent", "Serve the jobs on this host (as root)");
  auto command = make_command<AgentCommand>(sub, exit_code);
  JobAgentOptions& agent = command->agent;
  agent.host = short_host_name();
  agent.directory = "/run/ppmr-job";
  agent.evacuation.state_directory = "/var/lib/ppmr-job";
  agent.evacuation.target_port = kTargetPort;
  agent.peers.port = kPeerPort;
  sub.add_option("--host", agent.host, "name of this host for users and for other agents")
      ->capture_default_str();
  sub.add_option("--bridge", command->bridge,
                 "bridge to which the job nodes are attached; it leads to the other hosts")
      ->required();
  sub.add_option("--addresses", command->addresses,
                 "addresses for the jobs that start on this host, such as 10.3.7.0/24; no other "
                 "host may have them; default: 10.C.D.0/24 if the host's address is A.B.C.D")
      ->type_name("RANGE");
  sub.add_option("--network-bits", command->network_bits,
                 "length of the network prefix of job nodes")
      ->check(CLI::Range(8, 30))
      ->capture_default_str();
  sub.add_option("--mtu", command->mtu_bytes,
                 "maximum packet size of job nodes in bytes; default: that of the bridge")
      ->check(CLI::Range(576, 65535));
  sub.add_option(
         "--share", command->shares,
         "directory that is writable in job nodes and the same on all hosts; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->take_all()
      ->capture_default_str();
  sub.add_option("--admit", agent.admission_program,
                 "program that decides who may have job nodes here: called with the user's number, "
                 "exit code 0 admits; default: every user may")
      ->type_name("PROGRAM");
  sub.add_flag("--slurm", agent.needs_step,
               "make job nodes only within steps of Slurm, which needs ProctrackType=proctrack/"
               "cgroup: Slurm then decides who may use this host");
  add_credential_options(sub, command->credentials);
  sub.add_option("--directory", agent.directory, "directory for job nodes and their records")
      ->capture_default_str();
  sub.add_option("--state-dir", agent.evacuation.state_directory,
                 "directory for the records of migrations")
      ->capture_default_str();
  sub.add_option("--port", agent.peers.port, "port of the agents, the same on all hosts")
      ->capture_default_str();
  sub.add_option("--target-port", agent.evacuation.target_port,
                 "port of the agents' ppmr target, the same on all hosts")
      ->capture_default_str();
  sub.add_option(
         "--target-option", agent.target_options,
         "more options for ppmr target, such as --target-option=--memory-limit=8GiB; may be "
         "repeated")
      ->allow_extra_args(false)
      ->take_all();
  sub.add_option("--source-option", agent.evacuation.source_options,
                 "more options for ppmr source; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  sub.add_option_function<std::string>(
         "--host-timeout",
         [command](const std::string& text) {
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--host-timeout", time.error().message);
           command->agent.home.host_timeout = std::chrono::ceil<std::chrono::seconds>(*time);
         },
         "a job ends when one of its hosts cannot be reached for this time; default: 300")
      ->type_name("SECONDS");
  sub.add_option("--fence", agent.home.fence,
                 "program that ends with 0 only if the host that is its argument is certainly "
                 "dead: a protected job then goes on without that host")
      ->type_name("PROGRAM");
  sub.add_option_function<std::string>(
         "--dead-after",
         [command](const std::string& text) {
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--dead-after", time.error().message);
           command->agent.home.dead_after = std::chrono::ceil<std::chrono::seconds>(*time);
         },
         "how long a host of a protected job is lost until the fence is asked; default: 1")
      ->type_name("SECONDS");
  sub.add_option(
         "--keep-key", agent.home.suspension.key_file,
         "key that encrypts the files of suspended jobs, made with ppmr keygen, the same on "
         "all hosts; without it no job can be suspended")
      ->type_name("FILE");
  sub.add_option("--metrics", agent.metrics_address,
                 "serve metrics for Prometheus at this address, 127.0.0.1:PORT or [::1]:PORT")
      ->type_name("ADDRESS:PORT");
  add_audit_option(sub, command->audit_file);
  add_socket(sub, agent.socket);
  sub.add_option("--log-file", command->log_file, "log to this file instead of syslog");
  sub.add_flag("-f,--foreground", command->foreground, "stay in the foreground");
}

constexpr const char* kAuto = "auto";
// With `--protect auto`, the time until the next epoch as long as no epoch has succeeded.
constexpr std::chrono::seconds kFirstInterval{30};

template <typename Command>
void add_protect_option(CLI::App& sub, const std::shared_ptr<Command>& command) {
  sub.add_option_function<std::string>(
         "--protect",
         [command](const std::string& text) {
           command->protect.is_auto = text == kAuto;
           command->protect.every = kFirstInterval;
           if (command->protect.is_auto) return;
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--protect", time.error().message);
           if (*time < kJobEpochIntervalMin) {
             throw CLI::ValidationError("--protect", "at least 5 s between two epochs");
           }
           command->protect.every = std::chrono::duration_cast<std::chrono::milliseconds>(*time);
         },
         "keep an epoch of all nodes, so often, in the memory of two hosts each: when a host dies "
         "without warning, the job goes on from the last one; auto: as often as costs the least "
         "time with --mtbf")
      ->type_name("TIME|auto");
  sub.add_option_function<std::string>(
         "--mtbf",
         [command](const std::string& text) {
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--mtbf", time.error().message);
           command->protect.mtbf = std::chrono::duration_cast<std::chrono::milliseconds>(*time);
         },
         "with --protect auto: how long a host runs until it fails, on average")
      ->type_name("TIME");
}

void add_suspend(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand(
      "suspend", "Write a job to files, and end it; ppmr job resume lets it go on");
  auto command = make_command<JobSuspendCommand>(sub, exit_code);
  sub.add_option("JOB", command->job,
                 "the job, which began on this host; default: the only one of yours, in an "
                 "allocation of Slurm the only one of that");
  sub.add_option("--keep-dir", command->directory,
                 "directory for the files, which all hosts of the job have; it is made if it is "
                 "missing")
      ->required()
      ->type_name("DIR");
  sub.add_flag("--json", command->json, "print the result as one JSON object");
  add_socket(sub, command->socket);
}

void add_resume(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand(
      "resume",
      "Let a suspended job go on, on other hosts or the same; prints its output, as ppmr job run "
      "does");
  auto command = make_command<JobResumeCommand>(sub, exit_code);
  sub.add_option("DIR", command->directory, "directory of ppmr job suspend --keep-dir")->required();
  sub.add_option("--hosts", command->hosts,
                 "as many hosts as the job has nodes, and spares behind them; default: all hosts "
                 "of the allocation of Slurm")
      ->type_name("HOST,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all();
  sub.add_option("--spares", command->spares, "so many of the hosts, the last ones, are spares")
      ->capture_default_str();
  add_protect_option(sub, command);
  sub.add_flag("--again", command->again,
               "also if it has gone on before: only if that run is certainly lost");
  add_socket(sub, command->socket);
}

void add_run(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand(
      "run",
      "Run a command in job nodes, which can move while it runs; the command starts in the "
      "node of the first host");
  auto command = make_command<JobRunCommand>(sub, exit_code);
  sub.add_option("--hosts", command->hosts,
                 "the job's hosts, separated by commas; in an allocation of Slurm, some of its "
                 "hosts; default: all of them")
      ->type_name("HOST,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all();
  sub.add_option("--spares", command->spares,
                 "so many of the hosts, the last ones, are spares: they take the node of a host "
                 "that is evacuated")
      ->capture_default_str();
  sub.add_option("--slots", command->slots,
                 "ranks on each host; default: Slurm's tasks per node, else the CPUs of this host");
  add_protect_option(sub, command);
  sub.add_flag("--rdma", command->rdma,
               "ranks talk over RDMA, and can still move; over TCP if a host has no RDMA device");
  sub.add_flag("--dry-run", command->dry_run, "only check all hosts");
  add_socket(sub, command->socket);
  sub.add_option("COMMAND", command->argv,
                 "after --: the command, such as mpirun, and its arguments")
      ->take_all();
  sub.parse_complete_callback([&sub, command] {
    if (sub.remaining_size() > 0) return;  // CLI11 reports the unknown option afterwards
    if (command->argv.empty() && !command->dry_run) {
      throw CLI::RequiredError("-- COMMAND");
    }
  });
}

// Adds an option whose text `parse` turns into the value.
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& sub, const std::string& name, std::optional<T>& value,
                        const char* type, const char* description, Parse parse) {
  const auto take = [name, parse, &value](const std::string& text) {
    const auto parsed = parse(text);
    if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
    value = *parsed;
  };
  return sub.add_option_function<std::string>(name, take, description)->type_name(type);
}

// Checks the limit here. `ppmr migrate` would check it only after the host has left the pool.
Result<std::chrono::milliseconds> parse_limit(const std::string& text) {
  const auto time = parse_time(text);
  if (!time || *time > std::chrono::milliseconds(0)) return time;
  return failure(EINVAL, "a time must be more than 0");
}

Result<uint64_t> parse_max_rate(const std::string& text) {
  const auto rate = parse_size(text);
  if (!rate) return rate;
  if (Status high_enough = check_max_rate(*rate); !high_enough) {
    return failure(high_enough.error());
  }
  return rate;
}

// Adds the limits of `ppmr migrate`, with the same names and meanings.
std::vector<CLI::Option*> add_move_limits(CLI::App& sub, MoveLimits& limits) {
  std::vector<CLI::Option*> all = {
      add_parsed(sub, "--max-downtime", limits.max_downtime, "TIME",
                 "how long a node may stand still: its memory is copied in rounds while it runs; "
                 "default: 300ms",
                 parse_limit),
      add_parsed(sub, "--max-time", limits.max_time, "TIME",
                 "time limit for these rounds; default: 60s", parse_limit),
      add_parsed(sub, "--max-rate", limits.max_rate_bytes_per_s, "SIZE",
                 "bytes per second of these rounds; default: as many as possible", parse_max_rate),
      sub.add_option("--cpu-share", limits.cpu_share_percent,
                     "how much of one processor the copying may take meanwhile")
          ->type_name("PERCENT")
          ->check(CLI::Range(1, 100)),
      sub.add_option("--slow-down", limits.slow_down_percent,
                     "how much of the time a node may stand still meanwhile, if it writes its "
                     "memory faster than it is sent")
          ->type_name("PERCENT")
          ->check(CLI::Range(uint64_t{0}, kSlowDownMaxPercent)),
      sub.add_option_function<std::string>(
             "--on-timeout",
             [&limits](const std::string& text) { limits.cancels = text == "cancel"; },
             "what happens if the rest does not fit by then: freeze (the node stands still for "
             "longer) or cancel (it stays)")
          ->type_name("freeze|cancel")
          ->check(CLI::IsMember({"freeze", "cancel"}).description(""))};
  auto* stop_and_copy = sub.add_flag("--stop-and-copy", limits.stop_and_copy,
                                     "send all memory while the node is frozen");
  for (CLI::Option* option : all) option->excludes(stop_and_copy);
  all.push_back(stop_and_copy);
  return all;
}

void add_evacuate(CLI::App& job, int& exit_code) {
  CLI::App& sub =
      *job.add_subcommand("evacuate",
                          "Move the job nodes of a host to spare hosts of their jobs; the host "
                          "takes no more nodes until ppmr job return");
  auto command = make_command<JobEvacuateCommand>(sub, exit_code);
  sub.add_option("HOST", command->host, "host to evacuate")->required();
  auto* to = sub.add_option("--to", command->to, "spare host to move to; default: any of the job")
                 ->type_name("HOST");
  sub.add_option_function<std::string>(
         "--ranks",
         [](const std::string&) {
           throw CLI::ValidationError(
               "--ranks",
               "cannot move a part of a host's ranks: they share memory, and one launcher daemon "
               "started them; leave --ranks out, and all of them move");
         },
         "refused: the ranks of a host share memory and move together")
      ->type_name("LIST");
  auto* cancel =
      sub.add_flag("--cancel", command->cancel,
                   "abort the moves away from HOST that are not decided; their nodes stay");
  std::vector<CLI::Option*> of_moves = add_move_limits(sub, command->limits);
  of_moves.push_back(to);
  of_moves.push_back(
      add_time_option(sub, "--wait", command->wait,
                      "time to wait for a spare, or for a program to accept its connections"));
  for (CLI::Option* option : of_moves) option->excludes(cancel);
  sub.add_flag("--json", command->json, "print the result as one JSON object");
  add_socket(sub, command->socket);
}

void add_return(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand(
      "return", "Make an evacuated host a host for job nodes again, and a spare of its jobs");
  auto command = make_command<JobReturnCommand>(sub, exit_code);
  sub.add_option("HOST", command->host, "host to return")->required();
  sub.add_flag("--json", command->json, "print the result as one JSON object");
  add_socket(sub, command->socket);
}

void add_status(CLI::App& job, int& exit_code) {
  CLI::App& sub = *job.add_subcommand(
      "status", "Show the jobs that this host takes part in: their hosts, nodes and moves");
  auto command = make_command<JobStatusCommand>(sub, exit_code);
  sub.add_flag("--json", command->json, "print one JSON object");
  sub.add_flag("--watch", command->watch, "repeat every second");
  add_socket(sub, command->socket);
}

// Adds the commands that no user starts: agents and MPI launchers start them in job nodes, and
// Slurm in its step.
void add_internal_commands(CLI::App& job, int& exit_code) {
  CLI::App* init = job.add_subcommand("init")->group("");
  make_command<JobInit>(*init, exit_code);
  CLI::App* rsh = job.add_subcommand("rsh")->group("");
  rsh->prefix_command();  // the options belong to ssh
  CLI::App* hold = job.add_subcommand("hold")->group("");
  auto holding = make_command<JobHoldCommand>(*hold, exit_code);
  hold->add_option("ALLOCATION", holding->allocation)->required();
  add_socket(*hold, holding->socket);
  rsh->callback([rsh, &exit_code] { exit_code = JobRshCommand{rsh->remaining()}.run(); });
}

}  // namespace

void add_job_commands(CLI::App& app, int& exit_code) {
  CLI::App& job = *app.add_subcommand("job", "Run parallel jobs that can leave their hosts");
  job.require_subcommand(1);
  add_agent(job, exit_code);
  add_run(job, exit_code);
  add_suspend(job, exit_code);
  add_resume(job, exit_code);
  add_evacuate(job, exit_code);
  add_return(job, exit_code);
  add_status(job, exit_code);
  add_internal_commands(job, exit_code);
}

}  // namespace ppmr
