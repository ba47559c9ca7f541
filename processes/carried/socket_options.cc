#include "processes/carried/socket_options.h"

#include <arpa/inet.h>
#include <asm/socket.h>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <linux/in6.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

// Options that the headers of this system may lack.
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif
#ifndef SO_TXREHASH
#define SO_TXREHASH 74
#endif
#ifndef SO_RCVMARK
#define SO_RCVMARK 75
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_RCVPRIORITY
#define SO_RCVPRIORITY 82
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#ifndef IP_RECVERR_RFC4884
#define IP_RECVERR_RFC4884 26
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef IPV6_ROUTER_ALERT_ISOLATE
#define IPV6_ROUTER_ALERT_ISOLATE 30
#endif
#ifndef IPV6_RECVERR_RFC4884
#define IPV6_RECVERR_RFC4884 31
#endif
#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#endif
#ifndef TCP_DELACK_MAX_US
#define TCP_DELACK_MAX_US 46
#endif

namespace ppmr {
namespace {

constexpr size_t kValueMaxBytes = 64;
constexpr socklen_t kNameMaxBytes = 16;  // TCP_CA_NAME_MAX

// Which sockets have an option.
enum class Kind {
  kAll,
  kIp,
  kIpDatagram,
  kIpv4Datagram,
  kIpv6,
  kIpv6Datagram,
  kIpv6Raw,
  kUdp,
  kTcp,
  kTcpWithoutPeer,
  kPacket,
  kNetlink
};
// Which users may set the option of their own socket.
enum class Right { kUser, kPrivileged };

struct KnownOption {
  int level;
  int name;
  const char* text;
  Kind kind;
  Right right = Right::kUser;
  socklen_t size_bytes = sizeof(int);
};

#define OPTION(level, name, ...) \
  KnownOption { level, name, #name, __VA_ARGS__ }
// The options that CRIU 4.2 forgets, in the order in which apply_socket() sets them. Each can be
// set to the value that was read. tests/lab/socket_sweep.py finds further options.
constexpr std::array kOptions = {
    OPTION(SOL_SOCKET, SO_DEBUG, Kind::kAll, Right::kPrivileged),
    OPTION(SOL_SOCKET, SO_REUSEADDR, Kind::kAll),
    OPTION(SOL_SOCKET, SO_REUSEPORT, Kind::kIp),  // CRIU leaves it on for connections
    OPTION(SOL_SOCKET, SO_LINGER, Kind::kAll, Right::kUser, sizeof(linger)),
    OPTION(SOL_SOCKET, SO_TIMESTAMP_OLD, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPNS_OLD, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPING_OLD, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMP_NEW, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPNS_NEW, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TIMESTAMPING_NEW, Kind::kAll),
    OPTION(SOL_SOCKET, SO_RXQ_OVFL, Kind::kAll),
    OPTION(SOL_SOCKET, SO_WIFI_STATUS, Kind::kAll),
    OPTION(SOL_SOCKET, SO_NOFCS, Kind::kAll),
    OPTION(SOL_SOCKET, SO_SELECT_ERR_QUEUE, Kind::kAll),
    OPTION(SOL_SOCKET, SO_ZEROCOPY, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TXTIME, Kind::kAll, Right::kPrivileged, 2 * sizeof(int)),
    OPTION(SOL_SOCKET, SO_BUSY_POLL, Kind::kAll, Right::kPrivileged),
    OPTION(SOL_SOCKET, SO_PREFER_BUSY_POLL, Kind::kAll, Right::kPrivileged),
    OPTION(SOL_SOCKET, SO_PEEK_OFF, Kind::kAll),
    OPTION(SOL_SOCKET, SO_OOBINLINE, Kind::kAll),
    OPTION(SOL_SOCKET, SO_MAX_PACING_RATE, Kind::kAll),
    OPTION(SOL_SOCKET, SO_TXREHASH, Kind::kAll),
    OPTION(SOL_SOCKET, SO_RCVMARK, Kind::kAll, Right::kPrivileged),
    OPTION(SOL_SOCKET, SO_PASSPIDFD, Kind::kAll),
    OPTION(SOL_SOCKET, SO_RCVPRIORITY, Kind::kAll),
    OPTION(SOL_SOCKET, SO_PASSRIGHTS, Kind::kAll),
    OPTION(SOL_SOCKET, SO_LOCK_FILTER, Kind::kAll),
    OPTION(IPPROTO_IP, IP_TOS, Kind::kIp),
    OPTION(IPPROTO_IP, IP_TTL, Kind::kIp),
    OPTION(IPPROTO_IP, IP_ROUTER_ALERT, Kind::kIp, Right::kPrivileged),
    OPTION(IPPROTO_IP, IP_RETOPTS, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVTTL, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVTOS, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVOPTS, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVERR, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVERR_RFC4884, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVORIGDSTADDR, Kind::kIp),
    OPTION(IPPROTO_IP, IP_RECVFRAGSIZE, Kind::kIp),
    OPTION(IPPROTO_IP, IP_PASSSEC, Kind::kIp),
    OPTION(IPPROTO_IP, IP_PKTINFO, Kind::kIp),
    OPTION(IPPROTO_IP, IP_CHECKSUM, Kind::kIp),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER, Kind::kIp),
    OPTION(IPPROTO_IP, IP_MINTTL, Kind::kIp),
    OPTION(IPPROTO_IP, IP_TRANSPARENT, Kind::kIp, Right::kPrivileged),
    OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, Kind::kIp),
    OPTION(IPPROTO_IP, IP_LOCAL_PORT_RANGE, Kind::kIp),
    OPTION(IPPROTO_IP, IP_UNICAST_IF, Kind::kIp),
    OPTION(IPPROTO_IP, IP_MULTICAST_TTL, Kind::kIpDatagram),
    OPTION(IPPROTO_IP, IP_MULTICAST_IF, Kind::kIpv4Datagram),
    OPTION(IPPROTO_IP, IP_MULTICAST_LOOP, Kind::kIp),
    OPTION(IPPROTO_IP, IP_MULTICAST_ALL, Kind::kIp),
    OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVERR, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVERR_RFC4884, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVHOPOPTS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVRTHDR, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVDSTOPTS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVPATHMTU, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_RECVFRAGSIZE, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_2292PKTINFO, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_2292HOPOPTS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_2292DSTOPTS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_2292RTHDR, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_2292HOPLIMIT, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_FLOWINFO, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_FLOWINFO_SEND, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MINHOPCOUNT, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_TRANSPARENT, Kind::kIpv6, Right::kPrivileged),
    OPTION(IPPROTO_IPV6, IPV6_ROUTER_ALERT_ISOLATE, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, Kind::kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_IF, Kind::kIpv6Datagram),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_MULTICAST_ALL, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_TCLASS, Kind::kIpv6),
    OPTION(IPPROTO_IPV6, IPV6_DONTFRAG, Kind::kIpv6),
    OPTION(IPPROTO_RAW, IPV6_CHECKSUM, Kind::kIpv6Raw),
    OPTION(IPPROTO_UDP, UDP_ENCAP, Kind::kUdp, Right::kPrivileged),
    OPTION(IPPROTO_UDP, UDP_NO_CHECK6_TX, Kind::kUdp),
    OPTION(IPPROTO_UDP, UDP_NO_CHECK6_RX, Kind::kUdp),
    OPTION(IPPROTO_UDP, UDP_SEGMENT, Kind::kUdp),
    OPTION(IPPROTO_UDP, UDP_GRO, Kind::kUdp),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_SYNCNT, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_LINGER2, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_INQ, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_CONGESTION, Kind::kTcp, Right::kUser, kNameMaxBytes),
    OPTION(IPPROTO_TCP, TCP_TX_DELAY, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_RTO_MAX_MS, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_RTO_MIN_US, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_DELACK_MAX_US, Kind::kTcp),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN, Kind::kTcpWithoutPeer),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, Kind::kTcpWithoutPeer),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, Kind::kTcpWithoutPeer),
    OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP, Kind::kTcpWithoutPeer),
    OPTION(IPPROTO_TCP, TCP_MAXSEG, Kind::kTcpWithoutPeer),
    OPTION(SOL_PACKET, PACKET_TX_HAS_OFF, Kind::kPacket),
    OPTION(SOL_PACKET, PACKET_QDISC_BYPASS, Kind::kPacket),
    OPTION(SOL_PACKET, PACKET_IGNORE_OUTGOING, Kind::kPacket),
    OPTION(SOL_NETLINK, NETLINK_PKTINFO, Kind::kNetlink),
    OPTION(SOL_NETLINK, NETLINK_BROADCAST_ERROR, Kind::kNetlink),
    OPTION(SOL_NETLINK, NETLINK_NO_ENOBUFS, Kind::kNetlink),
    OPTION(SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, Kind::kNetlink, Right::kPrivileged),
    OPTION(SOL_NETLINK, NETLINK_CAP_ACK, Kind::kNetlink),
    OPTION(SOL_NETLINK, NETLINK_EXT_ACK, Kind::kNetlink),
    OPTION(SOL_NETLINK, NETLINK_GET_STRICT_CHK, Kind::kNetlink),
};
#undef OPTION

// The kernel writes a number in as many bytes as the caller has.
std::optional<std::string> value_of(int socket, int level, int name, socklen_t size = sizeof(int)) {
  std::array<char, kValueMaxBytes> value{};
  if (getsockopt(socket, level, name, value.data(), &size) != 0) return std::nullopt;
  return std::string(value.data(), size);
}

// A socket whose program has not chosen an MSS shows a computed one, which the kernel may refuse.
bool can_be_set_as_mss(const std::string& value) {
  constexpr int kMssMin = 88;     // TCP_MIN_MSS, include/net/tcp.h
  constexpr int kMssMax = 32767;  // MAX_TCP_WINDOW
  int mss = 0;
  if (value.size() == sizeof(mss)) std::memcpy(&mss, value.data(), sizeof(mss));
  return mss >= kMssMin && mss <= kMssMax;
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
  bool is_internet() const { return family == AF_INET || family == AF_INET6; }
  bool has(Kind kind) const {
    switch (kind) {
      case Kind::kAll:
        return true;
      case Kind::kIp:  // also IPv6 sockets, because they can have IPv4 peers
        return is_internet();
      case Kind::kIpDatagram:
        return is_internet() && !is_tcp();
      case Kind::kIpv4Datagram:
        return family == AF_INET && !is_tcp();
      case Kind::kIpv6:
        return family == AF_INET6;
      case Kind::kIpv6Datagram:
        return family == AF_INET6 && !is_tcp();
      case Kind::kIpv6Raw:
        return family == AF_INET6 && type == SOCK_RAW;
      case Kind::kUdp:
        return protocol == IPPROTO_UDP;
      case Kind::kTcp:
        return is_tcp();
      case Kind::kTcpWithoutPeer:
        return is_tcp() && !has_peer();
      case Kind::kPacket:
        return family == AF_PACKET;
      case Kind::kNetlink:
        return family == AF_NETLINK;
    }
    return false;
  }
};

SocketKind kind_of(int socket) {
  SocketKind kind{.family = number_of(socket, SOL_SOCKET, SO_DOMAIN),
                  .type = number_of(socket, SOL_SOCKET, SO_TYPE),
                  .protocol = number_of(socket, SOL_SOCKET, SO_PROTOCOL)};
  if (!kind.is_internet()) kind.protocol = -1;
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

Status choose_interface(int socket, const std::string& name,
                        const std::vector<MulticastGroup>& groups) {
  for (const MulticastGroup& group : groups) {
    if (group.interface != name) continue;
    ip_mreqn chosen{};
    chosen.imr_ifindex = static_cast<int>(group.interface_index);
    if (setsockopt(socket, IPPROTO_IP, IP_MULTICAST_IF, &chosen, sizeof(chosen)) == 0) return {};
    return system_failure("choose the interface for multicasts", name);
  }
  return failure(ENODEV,
                 fmt::format("choose the interface {} for multicasts: this node has none of "
                             "this name, or it is down: rename an interface, or set it up",
                             name));
}

Status set_ip_options(int socket, const std::string& options) {
  if (setsockopt(socket, IPPROTO_IP, IP_OPTIONS, options.data(),
                 static_cast<socklen_t>(options.size())) == 0) {
    return {};
  }
  return system_failure("set the socket option", "IP_OPTIONS");
}

// CRIU restores a connection with connect(2) on a socket in repair mode. The kernel then computes
// the MSS of the route from the default of 536 bytes. CRIU sets the MSS that the peer announced
// only after that. The kernel keeps the computed MSS as long as the MTU of the route stays the
// same, so the connection would send segments of 524 bytes for good. A change of the IP options
// makes the kernel compute the MSS again.
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

bool needs_privilege(uint32_t level, uint32_t name) {
  return std::any_of(kOptions.begin(), kOptions.end(), [&](const KnownOption& known) {
    return known.level == static_cast<int>(level) && known.name == static_cast<int>(name) &&
           known.right == Right::kPrivileged;
  });
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

void read_socket(int socket, const std::vector<MulticastGroup>& groups, MulticastProbe* multicast,
                 carried::Socket& read) {
  const SocketKind kind = kind_of(socket);
  read.set_connected(kind.has_peer());
  for (const KnownOption& known : kOptions) {
    if (!kind.has(known.kind)) continue;
    const auto value = value_of(socket, known.level, known.name, known.size_bytes);
    if (!value) continue;  // this kernel does not know the option
    if (known.kind == Kind::kTcpWithoutPeer && known.name == TCP_MAXSEG &&
        !can_be_set_as_mss(*value)) {
      continue;
    }
    carried::Option& option = *read.add_option();
    option.set_level(static_cast<uint32_t>(known.level));
    option.set_name(static_cast<uint32_t>(known.name));
    option.set_value(*value);
  }
  if (kind.is_internet()) {
    std::array<char, kValueMaxBytes> options{};
    socklen_t size = options.size();
    if (getsockopt(socket, IPPROTO_IP, IP_OPTIONS, options.data(), &size) == 0) {
      read.set_ip_options(std::string(options.data(), size));
    }
  }
  if (kind.is_tcp() || (kind.family != AF_INET && kind.family != AF_INET6)) return;
  // The kernel shows the choice of an IPv6 socket, and a choice that an IPv4 socket made by
  // address. Other sockets need the probe.
  const bool may_have_index = kind.family == AF_INET && kind.protocol == IPPROTO_UDP &&
                              number_of(socket, IPPROTO_IP, IP_MULTICAST_IF) == 0 &&
                              number_of(socket, SOL_SOCKET, SO_BINDTOIFINDEX) <= 0;
  const uint32_t index =
      may_have_index && multicast != nullptr ? multicast->interface_of(socket) : 0;
  for (const MulticastGroup& group : groups) {
    if (index != 0 && group.interface_index == index) {
      read.set_multicast_interface(group.interface);
    }
  }
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
    if (text.starts_with("socket option")) continue;  // an option of a later version of ppmr
    const auto size = static_cast<socklen_t>(option.value().size());
    if (value_of(socket, level, name, std::min<socklen_t>(size, kValueMaxBytes)) ==
        option.value()) {
      continue;
    }
    if (setsockopt(socket, level, name, option.value().data(), size) != 0) {
      return system_failure("set the socket option", text);
    }
  }
  for (const carried::Membership& membership : wanted.membership()) {
    if (Status joined = join(socket, membership, groups); !joined) return joined;
  }
  if (const std::string& name = wanted.multicast_interface(); !name.empty()) {
    if (Status chosen = choose_interface(socket, name, groups); !chosen) return chosen;
  }
  if (!wanted.connected() && !wanted.ip_options().empty()) {
    return set_ip_options(socket, wanted.ip_options());
  }
  return wanted.connected() && kind.is_tcp() ? renew_mss(socket, kind, wanted.ip_options())
                                             : Status{};
}

}  // namespace ppmr
