#include "processes/lonely_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

constexpr const char* kLoopback = "lo";
constexpr size_t kInterfacesMax = 64;
constexpr size_t kAddressesMax = 1024;

// The interfaces and addresses that the sockets of a restored tree may name.
struct Surroundings {
  std::vector<std::string> interfaces;  // without the loopback device
  std::vector<in_addr> addresses;       // without 127.0.0.0/8
  std::vector<in6_addr> addresses6;     // only those that are valid without an interface
};

void note_address(const sockaddr& address, Surroundings& found) {
  if (address.sa_family == AF_INET) {
    const in_addr at = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    if ((ntohl(at.s_addr) >> 24) != IN_LOOPBACKNET) found.addresses.push_back(at);
  } else if (address.sa_family == AF_INET6) {
    const in6_addr& at = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&at) || IN6_IS_ADDR_LOOPBACK(&at)) return;
    found.addresses6.push_back(at);
  }
}

Surroundings look_around() {
  Surroundings found;
  struct if_nameindex* const names = if_nameindex();
  for (const struct if_nameindex* each = names; names != nullptr && each->if_name != nullptr;
       ++each) {
    if (found.interfaces.size() < kInterfacesMax && std::strcmp(each->if_name, kLoopback) != 0) {
      found.interfaces.emplace_back(each->if_name);
    }
  }
  if (names != nullptr) if_freenameindex(names);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (found.addresses.size() + found.addresses6.size() >= kAddressesMax) break;
    if (each->ifa_addr != nullptr) note_address(*each->ifa_addr, found);
  }
  freeifaddrs(all);
  return found;
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  return request;
}

bool set_up(int socket, const std::string& name) {
  ifreq request = request_for(name);
  if (ioctl(socket, SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  return ioctl(socket, SIOCSIFFLAGS, &request) == 0;
}

// Makes a TAP device that no program serves, so it sends nothing. It stays until its namespace
// ends. Sockets that are bound to an interface, and members of multicast groups, need only the name
// of the interface.
void make_interface(int socket, const std::string& name) {
  const UniqueFd tun(open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  ifreq request = request_for(name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (!tun || ioctl(tun.get(), TUNSETIFF, &request) != 0) return;
  if (ioctl(tun.get(), TUNSETPERSIST, 1) != 0) return;
  (void)set_up(socket, name);
}

bool add_default_route(int socket) {
  rtentry route{};
  char device[] = "lo";
  route.rt_dst.sa_family = route.rt_genmask.sa_family = AF_INET;
  route.rt_flags = RTF_UP;
  route.rt_dev = device;
  return ioctl(socket, SIOCADDRT, &route) == 0;
}

bool add_default_route6(int socket) {
  in6_rtmsg route{};
  route.rtmsg_flags = RTF_UP;
  route.rtmsg_metric = 1;
  route.rtmsg_ifindex = static_cast<int>(if_nametoindex(kLoopback));
  return ioctl(socket, SIOCADDRT, &route) == 0;
}

bool set_address(int socket, unsigned long request, const std::string& name, in_addr address) {
  ifreq change = request_for(name);
  sockaddr_in value{};
  value.sin_family = AF_INET;
  value.sin_addr = address;
  std::memcpy(&change.ifr_addr, &value, sizeof value);
  return ioctl(socket, request, &change) == 0;
}

// Adds the address as an alias of the loopback device, with a netmask of 32 bits.
bool add_address(int socket, size_t number, in_addr address) {
  const std::string alias = std::string(kLoopback) + ":" + std::to_string(number);
  return set_address(socket, SIOCSIFADDR, alias, address) &&
         set_address(socket, SIOCSIFNETMASK, alias, {INADDR_NONE});
}

// The kernel's in6_ifreq. Its header linux/ipv6.h excludes netinet/in.h.
struct Address6Request {
  in6_addr address;
  uint32_t prefix_length;
  int interface_index;
};

bool add_address6(int socket, const in6_addr& address) {
  Address6Request request{};
  request.address = address;
  request.prefix_length = 128;
  request.interface_index = static_cast<int>(if_nametoindex(kLoopback));
  return ioctl(socket, SIOCSIFADDR, &request) == 0;
}

}  // namespace

Status enter_lonely_network() {
  const Surroundings here = look_around();
  const auto failed = [](const char* what) {
    return system_failure(what, "the network namespace of a rehearsal");
  };
  if (unshare(CLONE_NEWNET) != 0) return failed("create");
  const UniqueFd socket4(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket4) return failed("open a socket in");
  if (!set_up(socket4.get(), kLoopback)) return failed("set up the loopback device of");
  if (!add_default_route(socket4.get())) return failed("add a route to");
  for (size_t i = 0; i < here.addresses.size(); ++i) {
    if (!add_address(socket4.get(), i, here.addresses[i])) return failed("add an address to");
  }
  // A node may have no IPv6.
  if (const UniqueFd socket6(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)); socket6) {
    (void)add_default_route6(socket6.get());
    for (const in6_addr& address : here.addresses6) (void)add_address6(socket6.get(), address);
  }
  for (const std::string& name : here.interfaces) make_interface(socket4.get(), name);
  return {};
}

}  // namespace ppmr
