#include "jobs/cli/mpi_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace ppmr {
namespace {

struct Setting {
  std::string_view name, value;
  bool required;  // true: replaces the caller's value; false: only used if the caller has set none
};

// Settings for launchers, and settings that both transports have in common.
constexpr std::array kCommon = {
    Setting{"OMPI_MCA_plm", "rsh", true},
    Setting{"OMPI_MCA_ras", "^slurm", true},
    Setting{"OMPI_MCA_plm_rsh_agent", "/run/ppmr/rsh", true},
    // With these settings mpirun starts every daemon itself, and the daemons leave their sessions.
    // Otherwise node 1 would keep a process and a connection for each other node, and every move of
    // node 1 would also have to move these.
    Setting{"OMPI_MCA_plm_rsh_no_tree_spawn", "1", true},
    Setting{"OMPI_MCA_orte_leave_session_attached", "0", true},
    Setting{"OMPI_MCA_orte_default_hostfile", "/run/ppmr/hosts.openmpi", true},
    Setting{"OMPI_MCA_btl", "tcp,self,vader", false},
    // The one-sided windows of Open MPI 4.1 fail between hosts without RDMA, unless its component
    // for RDMA is left out.
    Setting{"OMPI_MCA_osc", "^rdma,ucx", false},
    Setting{"OMPI_MCA_btl_tcp_if_include", "eth0", true},
    Setting{"OMPI_MCA_oob_tcp_if_include", "eth0", true},
    Setting{"HYDRA_LAUNCHER", "ssh", true},
    Setting{"HYDRA_LAUNCHER_EXEC", "/run/ppmr/rsh", true},
    Setting{"HYDRA_HOST_FILE", "/run/ppmr/hosts.hydra", true},
    Setting{"HYDRA_IFACE", "eth0", true},
};

// Ranks of different nodes use TCP through the node's own address, and ranks of one node use shared
// memory: CRIU can dump these, and no other transport.
constexpr std::array kTcp = {
    Setting{"OMPI_MCA_pml", "ob1", false},
    Setting{"UCX_TLS", "tcp,posix,self", false},
    Setting{"UCX_NET_DEVICES", "eth0", true},
};

// Over RDMA, Open MPI and MPICH use UCX, with the transports that verbs_library can move. Only
// launchers use the node's TCP network.
constexpr std::array kRdma = {
    Setting{"OMPI_MCA_pml", "ucx", false},
    // Otherwise Open MPI uses UCX only with the adapters and transports on its own list.
    Setting{"OMPI_MCA_pml_ucx_tls", "any", false},
    Setting{"OMPI_MCA_pml_ucx_devices", "any", false},
    // Without cma, or with a second lane, a rank would also connect a queue pair with itself, which
    // verbs_library cannot move.
    Setting{"UCX_TLS", "rc_v,ud_v,posix,cma,self", false},
    Setting{"UCX_MAX_RNDV_LANES", "1", false},
    // ppmr cannot move rdma_cm connections, and job nodes have no device for rdma_cm.
    Setting{"UCX_SOCKADDR_TLS_PRIORITY", "tcp", false},
    // With its check of the packet kind, UCX drops all packets of the kernel's software device.
    Setting{"UCX_UD_VERBS_ETH_DGID_CHECK", "n", false},
};

}  // namespace

// The script reads the names of the hosts from /etc/hosts. As a part of the script, they would
// exceed the limit of Linux for an argument (128 KiB) with about 5000 hosts.
std::string start_script(unsigned slots) {
  return fmt::format(R"(sed -n '2,$s/.* \(.*\)/\1 slots={0}/p' /etc/hosts >/run/ppmr/hosts.openmpi
sed -n '2,$s/.* \(.*\)/\1:{0}/p' /etc/hosts >/run/ppmr/hosts.hydra
exec "$@")",
                     slots);
}

std::vector<std::string> job_environment(const std::string& job, char** environment,
                                         Transport transport) {
  std::vector<Setting> settings(kCommon.begin(), kCommon.end());
  const std::span<const Setting> more =
      transport == Transport::kRdma ? std::span<const Setting>(kRdma) : kTcp;
  settings.insert(settings.end(), more.begin(), more.end());
  std::vector<std::string> variables;
  const auto is_set = [&](std::string_view name) {
    return std::any_of(variables.begin(), variables.end(), [&](const std::string& variable) {
      return variable.size() > name.size() && variable.starts_with(name) &&
             variable[name.size()] == '=';
    });
  };
  for (char** variable = environment; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const bool replaced = std::any_of(settings.begin(), settings.end(), [&](const Setting& each) {
      return each.required && text.starts_with(std::string(each.name) + "=");
    });
    // The job node has its own temporary directory, host name and terminal.
    if (!replaced && !text.starts_with("TMPDIR=") && !text.starts_with("HOSTNAME=")) {
      variables.push_back(text);
    }
  }
  for (const Setting& setting : settings) {
    if (!is_set(setting.name))
      variables.push_back(fmt::format("{}={}", setting.name, setting.value));
  }
  variables.push_back("PPMR_JOB=" + job);
  return variables;
}

// The environment is as small as with ssh, because launchers pass other variables on the command
// line. But mpirun does not pass the settings of UCX, which its ranks need to reach each other.
std::vector<std::string> environment_for_daemons(char** environment) {
  constexpr std::array<std::string_view, 5> kPrefixes = {
      "PATH=", "HOME=", "USER=", "LD_LIBRARY_PATH=", "UCX_"};
  std::vector<std::string> variables;
  for (char** variable = environment; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(),
                    [&](std::string_view prefix) { return text.starts_with(prefix); })) {
      variables.emplace_back(text);
    }
  }
  return variables;
}

}  // namespace ppmr
