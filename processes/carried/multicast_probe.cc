#include "processes/carried/multicast_probe.h"

#include <arpa/inet.h>
#include <linux/net_tstamp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

namespace ppmr {
namespace {

// The copy of the datagram has arrived when the send call returns, except on a very busy machine.
constexpr int kPatienceMs = 50;

sockaddr_in all_hosts(in_port_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ALLHOSTS_GROUP);
  address.sin_port = port;
  return address;
}

int number_of(int socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

sockaddr_in address_of(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

in_port_t port_of(int socket) { return address_of(socket).sin_port; }

UniqueFd socket_at(sockaddr_in address) {
  UniqueFd made(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  address.sin_family = AF_INET;
  address.sin_port = 0;
  const bool is_bound =
      made && bind(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  return is_bound ? std::move(made) : UniqueFd();
}

bool is_connected_to_one_host(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         !IN_MULTICAST(ntohl(address.sin_addr.s_addr));
}

bool has_pending_error(int socket) {
  pollfd wanted{socket, 0, 0};
  return poll(&wanted, 1, 0) != 0;
}

// Returns whether the probe's datagram would leave a time stamp in the socket.
bool keeps_times_of_sent_datagrams(int socket) {
  constexpr int kOfSent = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_TX_SOFTWARE |
                          SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK;
  return (number_of(socket, SOL_SOCKET, SO_TIMESTAMPING) & kOfSent) != 0;
}

// Sets an option of a socket, and restores the old value at the end of the scope.
class SetForNow {
 public:
  SetForNow(int socket, int name, int value)
      : socket_(socket), name_(name), before_(number_of(socket, IPPROTO_IP, name)) {
    setsockopt(socket_, IPPROTO_IP, name_, &value, sizeof(value));
  }
  SetForNow(const SetForNow&) = delete;
  SetForNow& operator=(const SetForNow&) = delete;
  ~SetForNow() { setsockopt(socket_, IPPROTO_IP, name_, &before_, sizeof(before_)); }

 private:
  int socket_;
  int name_;
  int before_;
};

bool send_to_this_host(int socket, const sockaddr_in& to) {
  const SetForNow ttl(socket, IP_MULTICAST_TTL, 0);
  const SetForNow loop(socket, IP_MULTICAST_LOOP, 1);
  return sendto(socket, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to),
                sizeof(to)) == 0;
}

// Returns the interface of the next datagram that comes from `port`.
uint32_t receive_from(int socket, in_port_t port) {
  for (pollfd wanted{socket, POLLIN, 0}; poll(&wanted, 1, kPatienceMs) == 1;) {
    sockaddr_in from{};
    alignas(cmsghdr) std::array<char, 256> space{};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof(from);
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    if (recvmsg(socket, &message, MSG_DONTWAIT) < 0) return 0;
    const cmsghdr* const said = CMSG_FIRSTHDR(&message);
    if (from.sin_port != port || said == nullptr || said->cmsg_type != IP_PKTINFO) continue;
    in_pktinfo where{};
    std::memcpy(&where, CMSG_DATA(said), sizeof(where));
    return static_cast<uint32_t>(where.ipi_ifindex);
  }
  return 0;
}

}  // namespace

bool MulticastProbe::open_receiver() {
  if (receiver_) return true;
  UniqueFd receiver = socket_at({});
  const int on = 1;
  if (!receiver || setsockopt(receiver.get(), IPPROTO_IP, IP_PKTINFO, &on, sizeof(on)) != 0) {
    return false;
  }
  address_ = all_hosts(port_of(receiver.get()));
  receiver_ = std::move(receiver);
  return true;
}

uint32_t MulticastProbe::interface_of_datagram(int socket) {
  if (!send_to_this_host(socket, address_)) return 0;
  return receive_from(receiver_.get(), port_of(socket));
}

uint32_t MulticastProbe::interface_of(int socket) {
  if (port_of(socket) == 0 || number_of(socket, IPPROTO_UDP, UDP_CORK) != 0 ||
      has_pending_error(socket) || keeps_times_of_sent_datagrams(socket) ||
      is_connected_to_one_host(socket) || !open_receiver()) {
    return 0;
  }
  const uint32_t found = interface_of_datagram(socket);
  const UniqueFd another = socket_at(address_of(socket));
  return found == 0 || !another || found == interface_of_datagram(another.get()) ? 0 : found;
}

}  // namespace ppmr
