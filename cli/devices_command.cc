// `ppmr devices`: prints one block for each RDMA port of this node.
#include "cli/devices_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "rdma_stream/verbs/verbs_device.h"

namespace ppmr {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::string line(const char* label, const std::string& what) {
  return fmt::format("  {:<10}{}\n", label, what);
}

std::vector<std::string> addresses_of(const RdmaPort& port) {
  std::vector<std::string> addresses;
  for (const RailAddress& address : port.addresses) addresses.push_back(address.ip_text());
  return addresses;
}

std::string port_text(const RdmaPort& port) {
  std::string page = fmt::format("{}:{}  {}\n", port.device, port.number,
                                 port.usable ? "can be used" : "CANNOT BE USED: " + port.why_not);
  if (port.number == 0) return page;
  page += line("port", fmt::format("{}, {} over {}, MTU {} of {}", port.state, port.transport,
                                   port.link_layer, port.mtu_bytes, port.mtu_max_bytes));
  page += line("node", fmt::format("{}{}{}", port.node_guid,
                                   port.firmware.empty() ? "" : ", firmware ", port.firmware));
  page += line("addresses", join(addresses_of(port)));
  for (const RdmaPort::Gid& gid : port.gids) {
    page += line("gid", fmt::format("{}: {} ({}{})", gid.index, gid.gid, gid.type,
                                    gid.interface.empty() ? "" : ", " + gid.interface));
  }
  page += line("limits",
               fmt::format("{} queue pairs, {} reads served and {} started per queue pair, {} "
                           "pieces per read, {} per message",
                           port.queue_pairs_max, port.reads_served_max, port.reads_started_max,
                           port.read_pieces_max, format_size(port.message_max_bytes)));
  page += line("", fmt::format("{} regions of at most {}", port.regions_max,
                               format_size(port.region_max_bytes)));
  return page;
}

nlohmann::json port_json(const RdmaPort& port) {
  auto gids = nlohmann::json::array();
  for (const RdmaPort::Gid& gid : port.gids) {
    gids.push_back(
        {{"index", gid.index}, {"gid", gid.gid}, {"type", gid.type}, {"interface", gid.interface}});
  }
  return {{"device", port.device},
          {"port", port.number},
          {"usable", port.usable},
          {"why_not", port.why_not},
          {"state", port.state},
          {"transport", port.transport},
          {"link_layer", port.link_layer},
          {"node_guid", port.node_guid},
          {"firmware", port.firmware},
          {"mtu_bytes", port.mtu_bytes},
          {"mtu_max_bytes", port.mtu_max_bytes},
          {"addresses", addresses_of(port)},
          {"gids", gids},
          {"max_msg_size", port.message_max_bytes},
          {"max_qp", port.queue_pairs_max},
          {"max_sge_rd", port.read_pieces_max},
          {"max_qp_rd_atom", port.reads_served_max},
          {"max_qp_init_rd_atom", port.reads_started_max},
          {"max_mr", port.regions_max},
          {"max_mr_size", port.region_max_bytes}};
}

}  // namespace

int DevicesCommand::run() const {
  bool usable = false;
  const auto ports = find_rdma_ports();
  for (const RdmaPort& port : ports) {
    usable |= port.usable;
    if (json) {
      print_whole(stdout, "{}\n", json_text(port_json(port)));
    } else {
      print_text(stdout, port_text(port));
    }
  }
  if (ports.empty() && json) {
    return report("devices", {ExitCode::kFailure, "no RDMA devices: ppmr uses TCP"}, json);
  }
  if (ports.empty()) print_to(stdout, "no RDMA devices: ppmr uses TCP\n");
  return to_int(usable ? ExitCode::kSuccess : ExitCode::kFailure);
}

}  // namespace ppmr
