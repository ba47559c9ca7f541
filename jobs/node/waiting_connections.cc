#include "jobs/node/waiting_connections.h"

#include <sstream>

#include "base/whole_file.h"
#include "jobs/node/job_network.h"

namespace ppmr {
namespace {

constexpr const char* kListens = "0A";

}  // namespace

// For a listening socket (state 0A), the kernel shows the number of waiting connections in the
// column of the receive queue (tcp_ipv4.c, get_tcp4_sock()):
//
//   sl  local_address rem_address   st tx_queue rx_queue ...
//    0: 0200000A:2328 00000000:0000 0A 00000000:00000001 ...
std::vector<uint16_t> waiting_ports(const std::string& table) {
  std::vector<uint16_t> ports;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues;
    words >> number >> local >> remote >> state >> queues;
    const size_t port_at = local.rfind(':'), waiting_at = queues.rfind(':');
    if (!words || state != kListens || port_at == std::string::npos ||
        waiting_at == std::string::npos) {
      continue;
    }
    const unsigned long waiting = strtoul(queues.c_str() + waiting_at + 1, nullptr, 16);
    const unsigned long port = strtoul(local.c_str() + port_at + 1, nullptr, 16);
    if (waiting > 0 && port <= UINT16_MAX) ports.push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

Result<std::vector<uint16_t>> waiting_ports_of(const std::string& container) {
  std::vector<uint16_t> ports;
  const Status read = in_namespace(container, [&]() -> Status {
    for (const char* table : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
      const auto text = read_whole_file(table);
      if (!text) continue;  // no IPv6
      for (const uint16_t port : waiting_ports(*text)) ports.push_back(port);
    }
    return {};
  });
  if (!read) return failure(read.error());
  return ports;
}

}  // namespace ppmr
