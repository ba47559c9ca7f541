#include "processes/carried/socket_options.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/in6.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <sstream>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

namespace ppmr {
namespace {

constexpr size_t kValueMaxBytes = 64;

// Which sockets have an option.
enum class Kind { kAll, kIpv4, kIpv4Datagram, kIpv6, kIpv6Datagram, kUdp, kTcp, kTcpWithoutPeer };

struct KnownOption {
  int level;
  int name;
  const char* text;
  Kind kind;
};

#define OPTION(level, name, kind) \
  KnownOption { level, name, #name, Kind::kind }
// Those that CRIU 4.2 forgets. Each can be set to the value that was read.
constexpr std::array kOptions = {
    OPTION(SOL_SOCKET, SO_TIMESTAMP, kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPNS, kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPING, kAll),
    OPTION(SOL_SOCKET, SO_RXQ_OVFL, kAll),
    OPTION(SOL_SOCKET, SO_ZEROCOPY, kAll),
    OPTION(SOL_SOCKET, SO_BUSY_POLL, kAll),
    OPTION(SOL_SOCKET, SO_PEEK_OFF, kAll),
    OPTION(SOL_SOCKET, SO_OOBINLINE, kAll),
    OPTION(SOL_SOCKET, SO_MAX_PACING_RATE, kAll),
    OPTION(IPPROTO_IP, IP_RECVTTL, kIpv4),
    OPTION(IPPROTO_IP, IP_RECVTOS, kIpv4),
    OPTION(IPPROTO_IP, IP_RECVOPTS, kIpv4),
    OPTION(IPPROTO_IP, IP_RECVERR, kIpv4),
    OPTION(IPPROTO_IP, IP_RECVORIGDSTADDR, kIpv4),
    OPTION(IPPROTO_IP, IP_PKTINFO, kIpv4),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER, kIpv4),
    OPTION(IPPROTO_IP, IP_MINTTL, kIpv4),
    OPTION(IPPROTO_IP, IP_UNICAST_IF, kIpv4),
    OPTION(IPPROTO_IP, IP_MULTICAST_TTL, kIpv4Datagram),
    OPTION(IPPROTO_IP, IP_MULTICAST_LOOP, kIpv4Datagram),
    OPTION(IPPROTO_IP, IP_MULTICAST_ALL, kIpv4Datagram),
    OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVERR, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_IF, kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_ALL, kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_TCLASS, kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_DONTFRAG, kIpv6),
    OPTION(IPPROTO_UDP, UDP_SEGMENT, kUdp),
    OPTION(IPPROTO_UDP, UDP_GRO, kUdp),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, kTcp),
    OPTION(IPPROTO_TCP, TCP_SYNCNT, kTcp),
    OPTION(IPPROTO_TCP, TCP_LINGER2, kTcp),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, kTcp),
    OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, kTcp),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, kTcp),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN, kTcp),
    OPTION(IPPROTO_TCP, TCP_INQ, kTcp),
    OPTION(IPPROTO_TCP, TCP_CONGESTION, kTcp),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN, kTcpWithoutPeer),
    OPTION(IPPROTO_TCP, TCP_MAXSEG, kTcpWithoutPeer),
};
#undef OPTION

std::optional<std::string> value_of(int socket, int level, int name) {
  std::array<char, kValueMaxBytes> value{};
  socklen_t size = value.size();
  // The kernel writes a number in as many bytes as the caller has.
  if (name != TCP_CONGESTION || level != IPPROTO_TCP) size = sizeof(int);
  if (getsockopt(socket, level, name, value.data(), &size) != 0) return std::nullopt;
  return std::string(value.data(), size);
}

int number_of(int socket, int level, int name) {
  const auto value = value_of(socket, level, name);
  int number = -1;
  if (value && value->size() == sizeof(number)) std::memcpy(&number, value->data(), sizeof(number));
  return number;
}

struct SocketKind {
  int family = 0;
  int type = 0;
  int protocol = 0;
  int tcp_state = 0;

  bool is_tcp() const { return protocol == IPPROTO_TCP; }
  bool has_peer() const { return is_tcp() && tcp_state != TCP_LISTEN && tcp_state != TCP_CLOSE; }
  bool has(Kind kind) const {
    switch (kind) {
      case Kind::kAll:
        return true;
      case Kind::kIpv4:
        return family == AF_INET;
      case Kind::kIpv6:
        return family == AF_INET6;
      case Kind::kIpv4Datagram:
        return family == AF_INET && !is_tcp();
      case Kind::kIpv6Datagram:
        return family == AF_INET6 && !is_tcp();
      case Kind::kUdp:
        return protocol == IPPROTO_UDP;
      case Kind::kTcp:
        return is_tcp();
      case Kind::kTcpWithoutPeer:
        return is_tcp() && !has_peer();
    }
    return false;
  }
};

SocketKind kind_of(int socket) {
  SocketKind kind{.family = number_of(socket, SOL_SOCKET, SO_DOMAIN),
                  .type = number_of(socket, SOL_SOCKET, SO_TYPE),
                  .protocol = number_of(socket, SOL_SOCKET, SO_PROTOCOL)};
  const bool is_internet = kind.family == AF_INET || kind.family == AF_INET6;
  if (!is_internet) kind.protocol = -1;
  if (kind.is_tcp()) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      kind.tcp_state = info.tcpi_state;
    }
  }
  return kind;
}

sockaddr_storage address_of(const std::string& bytes) {
  sockaddr_storage storage{};
  if (bytes.size() == sizeof(in_addr)) {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, bytes.data(), bytes.size());
  } else {
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    std::memcpy(&address.sin6_addr, bytes.data(), std::min(bytes.size(), sizeof(in6_addr)));
  }
  return storage;
}

std::string text_of(const std::string& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.size() == sizeof(in_addr) ? AF_INET : AF_INET6, address.data(), text.data(),
            text.size());
  return text.data();
}

// The kernel lists the groups of interfaces, not of sockets. It refuses to show the source filter
// of a group to a socket that is not a member.
bool is_member(int socket, int level, const MulticastGroup& group) {
  group_filter filter{};
  filter.gf_interface = group.interface_index;
  filter.gf_group = address_of(group.address);
  socklen_t size = sizeof(filter);
  return getsockopt(socket, level, MCAST_MSFILTER, &filter, &size) == 0;
}

int level_of(const std::string& address) {
  return address.size() == sizeof(in_addr) ? IPPROTO_IP : IPPROTO_IPV6;
}

Status join(int socket, const carried::Membership& wanted,
            const std::vector<MulticastGroup>& groups) {
  for (const MulticastGroup& group : groups) {
    if (group.interface != wanted.interface()) continue;
    const int level = level_of(wanted.group());
    if (is_member(socket, level, {group.interface_index, group.interface, wanted.group()}))
      return {};
    group_req request{};
    request.gr_interface = group.interface_index;
    request.gr_group = address_of(wanted.group());
    if (setsockopt(socket, level, MCAST_JOIN_GROUP, &request, sizeof(request)) == 0) return {};
    return system_failure("join the multicast group",
                          text_of(wanted.group()) + " on " + wanted.interface());
  }
  return failure(ENODEV,
                 fmt::format("join the multicast group {}: this node has no interface {}, or "
                             "it is down: rename an interface, or set it up",
                             text_of(wanted.group()), wanted.interface()));
}

// CRIU restores a connection with connect(2) on a socket in repair mode, and then sets the MSS that
// the peer announced. The kernel has computed the MSS of the route before that, with the default of
// 536 bytes, and keeps it as long as the MTU of the route stays the same: the connection would send
// segments of 524 bytes for good. A change of the IP options makes the kernel compute it again.
Status renew_mss(int socket, const SocketKind& kind, const std::string& options) {
  if (kind.family == AF_INET6 && setsockopt(socket, IPPROTO_IPV6, IPV6_RTHDR, nullptr, 0) != 0) {
    return system_failure("renew", "the MSS of a TCP connection over IPv6");
  }
  if (setsockopt(socket, IPPROTO_IP, IP_OPTIONS, options.data(),
                 static_cast<socklen_t>(options.size())) != 0) {
    return system_failure("renew", "the MSS of a TCP connection");
  }
  return {};
}

}  // namespace

std::vector<MulticastGroup> parse_groups(std::string_view igmp, std::string_view igmp6) {
  std::vector<MulticastGroup> groups;
  std::istringstream lines{std::string(igmp)};
  MulticastGroup interface;
  for (std::string line; std::getline(lines, line);) {
    std::array<char, 32> name{};
    unsigned index = 0;
    unsigned address = 0;
    // "2\teth0      :     1      V3", then for each group "\t\t\t\t010000E0     1 0:00000000\t\t0".
    if (line.starts_with('\t')) {
      if (std::sscanf(line.c_str(), " %8x", &address) != 1) continue;
      interface.address.assign(reinterpret_cast<const char*>(&address), sizeof(address));
      groups.push_back(interface);
    } else if (std::sscanf(line.c_str(), "%u %31s", &index, name.data()) == 2) {
      interface.interface_index = index;
      interface.interface = name.data();
      if (interface.interface.ends_with(':')) interface.interface.pop_back();
    }
  }
  // "2    eth0            ff020000000000000000000000000001     1 0000000C 0"
  std::istringstream lines6{std::string(igmp6)};
  for (std::string line; std::getline(lines6, line);) {
    std::array<char, 32> name{};
    std::array<char, 33> digits{};
    unsigned index = 0;
    if (std::sscanf(line.c_str(), "%u %31s %32s", &index, name.data(), digits.data()) != 3)
      continue;
    if (std::strlen(digits.data()) != 32) continue;
    std::string address;
    for (size_t i = 0; i < 32; i += 2) {
      address += static_cast<char>(std::strtoul(std::string(&digits[i], 2).c_str(), nullptr, 16));
    }
    groups.push_back({index, name.data(), address});
  }
  return groups;
}

std::string name_of_option(uint32_t level, uint32_t name) {
  for (const KnownOption& known : kOptions) {
    if (known.level == static_cast<int>(level) && known.name == static_cast<int>(name)) {
      return known.text;
    }
  }
  return fmt::format("socket option {} of level {}", name, level);
}

std::vector<std::string> names_of_options() {
  std::vector<std::string> names;
  for (const KnownOption& known : kOptions) names.emplace_back(known.text);
  return names;
}

Result<UniqueFd> take_socket(const UniqueFd& pidfd, int number) {
  UniqueFd socket(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
  if (!socket)
    return system_failure("take a copy of the socket with descriptor", std::to_string(number));
  return socket;
}

void read_socket(int socket, const std::vector<MulticastGroup>& groups, carried::Socket& read) {
  const SocketKind kind = kind_of(socket);
  read.set_connected(kind.has_peer());
  for (const KnownOption& known : kOptions) {
    if (!kind.has(known.kind)) continue;
    const auto value = value_of(socket, known.level, known.name);
    if (!value) continue;  // this kernel does not know it
    carried::Option& option = *read.add_option();
    option.set_level(static_cast<uint32_t>(known.level));
    option.set_name(static_cast<uint32_t>(known.name));
    option.set_value(*value);
  }
  if (kind.has_peer()) {
    std::array<char, kValueMaxBytes> options{};
    socklen_t size = options.size();
    if (getsockopt(socket, IPPROTO_IP, IP_OPTIONS, options.data(), &size) == 0) {
      read.set_ip_options(std::string(options.data(), size));
    }
  }
  if (kind.is_tcp() || (kind.family != AF_INET && kind.family != AF_INET6)) return;
  for (const MulticastGroup& group : groups) {
    const int level = level_of(group.address);
    if (level != (kind.family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6)) continue;
    if (!is_member(socket, level, group)) continue;
    carried::Membership& membership = *read.add_membership();
    membership.set_group(group.address);
    membership.set_interface(group.interface);
  }
}

Status apply_socket(const carried::Socket& wanted, const std::vector<MulticastGroup>& groups,
                    int socket) {
  const SocketKind kind = kind_of(socket);
  for (const carried::Option& option : wanted.option()) {
    const int level = static_cast<int>(option.level());
    const int name = static_cast<int>(option.name());
    const std::string text = name_of_option(option.level(), option.name());
    if (text.starts_with("socket option")) continue;  // of a later version of ppmr
    if (value_of(socket, level, name) == option.value()) continue;
    if (setsockopt(socket, level, name, option.value().data(),
                   static_cast<socklen_t>(option.value().size())) != 0) {
      return system_failure("set the socket option", text);
    }
  }
  for (const carried::Membership& membership : wanted.membership()) {
    if (Status joined = join(socket, membership, groups); !joined) return joined;
  }
  return wanted.connected() && kind.is_tcp() ? renew_mss(socket, kind, wanted.ip_options())
                                             : Status{};
}

}  // namespace ppmr
