#include "daemon/command_line/transport_option.h"

#include <CLI/CLI.hpp>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {

void add_transport_options(CLI::App& app, TransportOptions& options) {
  app.add_option_function<std::string>(
         "--transport",
         [&options](const std::string& text) {
           const auto mode = parse_transport_mode(text);
           if (!mode) throw CLI::ValidationError("--transport", mode.error().message);
           options.mode = *mode;
         },
         "transport of image bytes: verbs (RDMA), tcp, or auto: verbs if both sides support it")
      ->type_name("auto|verbs|tcp")
      ->default_str("auto");
  app.add_option("--device", options.rails.devices,
                 "RDMA devices to use together (NAME or NAME:PORT); default: all usable ones")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->take_all();
  app.add_option_function<uint32_t>(
         "--gid-index", [&options](const uint32_t& index) { options.rails.gid_index = index; },
         "index in each port's GID table of the address to use (see ppmr devices)")
      ->type_name("N");
}

std::string address_problem(const std::string& text) {
  const Status checked = check_address(text);
  return checked ? std::string() : checked.error().message;
}

}  // namespace ppmr
