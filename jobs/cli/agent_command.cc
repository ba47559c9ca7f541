#include "jobs/cli/agent_command.h"

#include <filesystem>

#include "base/descriptor_limit.h"
#include "base/own_path.h"
#include "daemon/audit/audit_trail.h"
#include "daemon/background/daemon.h"
#include "daemon/background/reload.h"
#include "daemon/background/verbs_library_file.h"
#include "rdma_stream/connection/security.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

Status check(const AgentCommand& command) {
  if (geteuid() != 0) return failure(EPERM, "the agent needs root: it makes containers");
  if (!is_host_name(command.agent.host)) {
    return failure(EINVAL, "'" + command.agent.host + "' is not the name of a host (--host)");
  }
  for (const std::string& share : command.shares) {
    if (!share.starts_with('/') || !std::filesystem::is_directory(share)) {
      return failure(EINVAL, "--share " + share + ": not the absolute path of a directory");
    }
  }
  auto security = Security::load(command.credentials);
  if (!security) return failure(security.error());
  if (!(*security)->authenticates()) {
    return failure(EACCES,
                   "agents act as root for each other: authenticate them with --key-file or "
                   "certificates");
  }
  return {};
}

ExitCode serve(Daemon& daemon, AgentCommand& command) {
  if (Status checked = check(command); !checked) {
    return daemon.failed(checked.error(), ExitCode::kUsage);
  }
  const auto program = own_path();
  if (!program) return daemon.failed(program.error(), ExitCode::kFailure);
  JobAgentOptions& agent = command.agent;
  const auto addresses = command.addresses.empty() ? default_address_range(agent.host)
                                                   : parse_address_range(command.addresses);
  if (!addresses) return daemon.failed(addresses.error(), ExitCode::kUsage);
  agent.nodes.network = {.bridge = command.bridge,
                         .prefix_bits = command.network_bits,
                         .mtu_bytes = command.mtu_bytes};
  agent.nodes.shares = command.shares;
  agent.nodes.program = *program;
  // A host without this library has no RDMA for jobs. The agent reports that when a job wants RDMA.
  const auto directory = std::filesystem::path(agent.nodes.program).parent_path();
  agent.nodes.verbs_library = find_verbs_library(directory.string()).value_or("");
  agent.home.host = agent.host;
  agent.home.addresses = *addresses;
  agent.home.network = agent.nodes.network;
  agent.home.suspension.program = agent.nodes.program;
  if (std::string& key = agent.home.suspension.key_file; !key.empty()) {
    key = std::filesystem::absolute(key).string();
  }
  agent.peers.credentials = command.credentials;
  agent.evacuation.program = agent.nodes.program;
  agent.evacuation.credentials = command.credentials;
  if (!command.audit_file.empty()) {
    command.audit_file = std::filesystem::absolute(command.audit_file).string();
    for (auto* options : {&agent.target_options, &agent.evacuation.source_options}) {
      options->insert(options->end(), {"--audit-file", command.audit_file});
    }
  }
  auto audit = AuditTrail::open(command.audit_file);
  if (!audit) return daemon.failed(audit.error(), ExitCode::kUsage);
  agent.on_event = [trail = audit->get()](const ConnectionEvent& event) { trail->write(event); };
  auto created = JobAgent::create(agent);
  if (!created) return daemon.failed(created.error(), ExitCode::kFailure);
  StopSignals signals([&](int) { (*created)->stop(); },
                      [&] { reload(daemon, (*created)->security(), **audit); });
  daemon.ready();
  spdlog::info("agent of host {} ready, jobs get the addresses {} to {}", agent.host,
               format_address(addresses->first), format_address(addresses->last));
  (*created)->run();
  return ExitCode::kSuccess;
}

}  // namespace

int AgentCommand::run() {
  raise_descriptor_limit();  // each connection, command and file of a suspension needs some
  return run_daemon({.name = "ppmr job agent", .foreground = foreground, .log_file = log_file},
                    [this](Daemon& daemon) { return serve(daemon, *this); });
}

}  // namespace ppmr
