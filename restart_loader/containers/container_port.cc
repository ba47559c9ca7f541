#include "restart_loader/containers/container_port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/if_ether.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "base/without_exceptions.h"

namespace ppmr {
namespace {

using nlohmann::json;

bool is_interface_name(const std::string& name) {
  return !name.empty() && name.size() < IFNAMSIZ && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/ \t\n\0", 5)) == std::string::npos;
}

// `request`: SIOCBRADDIF attaches the port to its bridge, SIOCBRDELIF detaches it. Returns 0 or an
// errno.
int change_bridge(const ContainerPort& port, unsigned long request) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  ifreq argument{};
  port.bridge.copy(argument.ifr_name, IFNAMSIZ - 1);
  argument.ifr_ifindex = static_cast<int>(if_nametoindex(port.interface.c_str()));
  if (argument.ifr_ifindex == 0) return errno;
  return ioctl(socket.get(), request, &argument) == 0 ? 0 : errno;
}

// Sends an ARP announcement (RFC 5227): a request whose sender and target are both `address`.
void announce(const ifaddrs& interface, const in_addr& address) {
  const UniqueFd socket(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ARP)));
  if (!socket) return;
  sockaddr_ll own{};
  socklen_t own_size = sizeof(own);
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(ETH_P_ARP);
  own.sll_ifindex = static_cast<int>(if_nametoindex(interface.ifa_name));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      own.sll_halen != ETH_ALEN) {
    return;
  }
  ether_arp arp{};
  arp.arp_hrd = htons(ARPHRD_ETHER);
  arp.arp_pro = htons(ETH_P_IP);
  arp.arp_hln = ETH_ALEN;
  arp.arp_pln = sizeof(address);
  arp.arp_op = htons(ARPOP_REQUEST);
  std::memcpy(arp.arp_sha, own.sll_addr, ETH_ALEN);
  std::memcpy(arp.arp_spa, &address, sizeof(address));
  std::memcpy(arp.arp_tpa, &address, sizeof(address));
  sockaddr_ll everyone = own;
  std::fill_n(everyone.sll_addr, ETH_ALEN, 0xff);
  // Best effort: the switches also learn the address from the container's next TCP segment.
  (void)sendto(socket.get(), &arp, sizeof(arp), 0, reinterpret_cast<const sockaddr*>(&everyone),
               sizeof(everyone));
}

void announce_addresses(const std::string& network_namespace) {
  const UniqueFd target(open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC));
  if (!target || setns(target.get(), CLONE_NEWNET) != 0) return;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & (IFF_LOOPBACK | IFF_NOARP)) != 0) continue;
    announce(*each, reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr);
  }
  freeifaddrs(first);
}

}  // namespace

Status ContainerPort::cut() const {
  const int error = change_bridge(*this, SIOCBRDELIF);
  if (error == 0 || error == EINVAL) return {};  // EINVAL: the port is not attached
  return failure(
      error, fmt::format("cannot detach {} from {}: {}", interface, bridge, std::strerror(error)));
}

Status ContainerPort::attach() const {
  const int error = change_bridge(*this, SIOCBRADDIF);
  if (error == EBUSY) return {};  // EBUSY: the port is already attached
  if (error != 0) {
    return failure(
        error, fmt::format("cannot attach {} to {}: {}", interface, bridge, std::strerror(error)));
  }
  // A new thread announces the addresses, because setns(2) changes the calling thread.
  try {
    std::thread([this] {
      (void)without_exceptions([this]() -> Status {
        announce_addresses(network_namespace);
        return {};
      });
    }).join();
  } catch (const std::system_error&) {
    // No gratuitous ARP: the switches learn the address from the container's next TCP segment.
  }
  return {};
}

Result<ContainerPort> parse_container_port(const std::string& config) {
  try {
    const json parsed = json::parse(config);
    const json annotations = parsed.value("annotations", json::object());
    ContainerPort port{.interface = annotations.value("ppmr.port", ""),
                       .bridge = annotations.value("ppmr.bridge", ""),
                       .network_namespace = ""};
    if (port.interface.empty() && port.bridge.empty()) return port;
    for (const std::string& name : {port.interface, port.bridge}) {
      if (!is_interface_name(name)) {
        return failure(EPROTO,
                       "the annotations ppmr.port and ppmr.bridge must both name a network "
                       "interface: '" +
                           name + "' is not such a name");
      }
    }
    for (const json& entry : parsed.at("linux").at("namespaces")) {
      if (entry.at("type") == "network") port.network_namespace = entry.value("path", "");
    }
    if (port.network_namespace.empty()) {
      return failure(EPROTO,
                     "the annotation ppmr.port requires a network namespace with a path "
                     "(linux.namespaces)");
    }
    return port;
  } catch (const json::exception& error) {
    return failure(EPROTO, error.what());
  }
}

Result<ContainerPort> read_container_port(const std::string& bundle) {
  const std::string path = bundle + "/config.json";
  const auto text = read_whole_file(path);
  if (!text) return failure(text.error());
  auto port = parse_container_port(*text);
  if (!port) return failure(port.error().errno_value, path + ": " + port.error().message);
  return port;
}

}  // namespace ppmr
