#include "rdma_stream/connection/tcp_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "rdma_stream/connection/peer_user.h"

namespace ppmr {
namespace {

// Drops the first `count` bytes of `buffers` and returns the index of the first remaining buffer.
size_t drop_front(std::span<iovec> buffers, size_t count) {
  size_t first = 0;
  while (first < buffers.size() && count >= buffers[first].iov_len) {
    count -= buffers[first++].iov_len;
  }
  if (first < buffers.size()) {
    buffers[first].iov_base = static_cast<char*>(buffers[first].iov_base) + count;
    buffers[first].iov_len -= count;
  }
  return first;
}

// A wake-up for every packet costs more than copying the packet, so a long read waits for this many
// bytes (or for the rest). Measured over veth on 2 cores with 1 MiB reads: 5.8 GB/s at 0.23
// CPU-s/GB with the wait, 4.1 GB/s at 0.33 CPU-s/GB without it. The value is less than a socket's
// receive buffer; the kernel also wakes the reader when that buffer is full.
constexpr size_t kWaitForBytes = 256 << 10;
constexpr size_t kLongReadBytes = 64 << 10;

// Keep-alive probes detect that the peer of an idle data connection has disappeared.
constexpr int kKeepAliveIdleSeconds = 5;
constexpr int kKeepAliveIntervalSeconds = 2;
constexpr int kKeepAliveProbes = 3;

// A peer with at most this round-trip time is in the same data centre. There BBR is slower, because
// it paces every burst with a timer: a 1 GiB dump over loopback on 2 cores took 0.56 s with BBR,
// 0.50 s with cubic. For other peers the system's congestion control stays.
constexpr std::chrono::microseconds kNearRoundTrip{1000};
constexpr char kUnpacedCongestionControl[] = "cubic";

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> IN_CLASSA_NSHIFT) == IN_LOOPBACKNET;
  }
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  const bool mapped_v4 = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&v6) || mapped_v4;
}

bool have_equal_address(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                            &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr);
}

bool ends_are_local(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof own;
  socklen_t peer_bytes = sizeof peer;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) {
    return false;
  }
  return is_loopback(reinterpret_cast<const sockaddr*>(&peer)) || have_equal_address(own, peer);
}

class TcpConnection final : public Connection {
 public:
  TcpConnection(UniqueFd socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {
    set_option(IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
    set_option(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
    set_option(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
    choose_congestion_control();
  }

  using Connection::read;
  using Connection::write;

  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    received_bytes = 0;
    // Drops empty buffers: receiving 0 bytes would look like the end of the stream.
    buffers = buffers.subspan(drop_front(buffers, 0));
    size_t left_bytes = 0;
    for (const iovec& buffer : buffers) left_bytes += buffer.iov_len;
    const bool is_long = left_bytes >= kLongReadBytes;
    while (!buffers.empty()) {
      if (is_long) {
        if (Status arrived = await_bytes(left_bytes - received_bytes); !arrived) return arrived;
      } else {
        set_low_water_mark(1);
      }
      msghdr message{};
      message.msg_iov = buffers.data();
      message.msg_iovlen = buffers.size();
      const ssize_t count =
          ::recvmsg(socket_.get(), &message, is_long ? MSG_DONTWAIT : MSG_WAITALL);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
          if (is_long) continue;
          return system_failure("receive from", peer_, ETIMEDOUT);
        }
        return system_failure("receive from", peer_);
      }
      if (count == 0) return failure(ECONNRESET, "receive from " + peer_ + ": connection closed");
      received_bytes += static_cast<size_t>(count);
      buffers = buffers.subspan(drop_front(buffers, static_cast<size_t>(count)));
    }
    return {};
  }

  Result<size_t> read_some(std::span<std::byte> bytes) override { return receive(bytes, 0); }
  Result<std::byte> peek() override {
    std::byte byte{};
    if (auto received = receive({&byte, 1}, MSG_PEEK); !received) return failure(received.error());
    return byte;
  }

  Status write(std::span<iovec> buffers) override {
    while (!buffers.empty()) {
      msghdr message{};
      message.msg_iov = buffers.data();
      message.msg_iovlen = buffers.size();
      const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
          return system_failure("send to", peer_, ETIMEDOUT);
        }
        return system_failure("send to", peer_);
      }
      buffers = buffers.subspan(drop_front(buffers, static_cast<size_t>(count)));
    }
    return {};
  }

  void set_read_timeout(std::chrono::milliseconds timeout) override {
    set_timeout(SO_RCVTIMEO, timeout);
    read_timeout_ms_ = timeout.count() == 0 ? -1 : static_cast<int>(timeout.count());
  }
  void set_write_timeout(std::chrono::milliseconds timeout) override {
    set_timeout(SO_SNDTIMEO, timeout);
  }

  void set_silence_max(std::chrono::milliseconds silence) override {
    set_option(IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set_option(IPPROTO_TCP, TCP_KEEPINTVL, 1);
    // The limit for probes without a reply, and for data that the peer does not confirm (tcp(7)).
    set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
  }

  void shut_down() override { ::shutdown(socket_.get(), SHUT_RDWR); }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return ends_are_local(socket_.get()); }

 private:
  Result<size_t> receive(std::span<std::byte> bytes, int flags) {
    set_low_water_mark(1);
    ssize_t count = 0;
    do {
      count = ::recv(socket_.get(), bytes.data(), bytes.size(), flags);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      const bool late = errno == EAGAIN || errno == EWOULDBLOCK;
      return system_failure("receive from", peer_, late ? ETIMEDOUT : errno);
    }
    if (count == 0) return failure(ECONNRESET, "receive from " + peer_ + ": connection closed");
    return static_cast<size_t>(count);
  }
  void set_option(int level, int option, int value) {
    ::setsockopt(socket_.get(), level, option, &value, sizeof value);
  }
  // If cubic is not available or not allowed, the system's congestion control stays.
  void choose_congestion_control() {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
    if (info.tcpi_rtt != 0 && is_near(std::chrono::microseconds(info.tcpi_rtt))) {
      use_cubic(socket_.get());
    }
  }
  void set_low_water_mark(int bytes) {
    if (bytes == low_water_mark_) return;
    set_option(SOL_SOCKET, SO_RCVLOWAT, bytes);
    low_water_mark_ = bytes;
  }
  // Waits until enough of `left_bytes` has arrived to be worth a wake-up, or the connection has
  // ended. A blocking receive does not work here: it takes the bytes that have arrived and then
  // sleeps until the low-water mark is reached again, although fewer bytes may be missing.
  Status await_bytes(size_t left_bytes) {
    set_low_water_mark(static_cast<int>(std::min(left_bytes, kWaitForBytes)));
    pollfd wait{socket_.get(), POLLIN, 0};
    int ready = 0;
    do {
      ready = ::poll(&wait, 1, read_timeout_ms_);
    } while (ready < 0 && errno == EINTR);
    // On a slow link some bytes, but fewer than the low-water mark, may have arrived within the
    // timeout. They count as progress.
    if (ready == 0 && low_water_mark_ > 1) {
      set_low_water_mark(1);
      ready = ::poll(&wait, 1, 0);
    }
    if (ready == 0) return system_failure("receive from", peer_, ETIMEDOUT);
    return {};
  }
  void set_timeout(int option, std::chrono::milliseconds timeout) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
    const timeval value{us / 1'000'000, us % 1'000'000};
    ::setsockopt(socket_.get(), SOL_SOCKET, option, &value, sizeof value);
  }

  const UniqueFd socket_;
  const std::string peer_;
  // Only the reading thread uses these members.
  int read_timeout_ms_ = -1;
  int low_water_mark_ = 1;
};

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> split_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return failure(EINVAL, "address '" + address +
                               "': must be HOST:PORT, for example "
                               "node-b:7440, [2001:db8::1]:7440 or :7440");
  }
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  if (parts.port.find_first_not_of("0123456789") != std::string::npos || parts.port.size() > 5 ||
      std::stoul(parts.port) > 65535) {
    return failure(EINVAL, "address '" + address + "': port must be a number up to 65535");
  }
  return parts;
}

}  // namespace

Status check_address(const std::string& address) {
  const auto parts = split_address(address);
  return parts ? Status{} : failure(parts.error());
}

Error no_address_error(const std::string& address, int code) {
  // EAI_AGAIN: no name server has answered, but the name may be wrong as well.
  const std::string service =
      code == EAI_AGAIN ? "check this node's name service (/etc/resolv.conf), " : "";
  return {kNoAddress, "resolve '" + address + "': " + ::gai_strerror(code) + ": " + service +
                          "correct the name, or use an address"};
}

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const std::string& address, int flags) {
  auto parts = split_address(address);
  if (!parts) return failure(parts.error());
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const char* host = parts->host.empty() ? nullptr : parts->host.c_str();
  if (const int code = ::getaddrinfo(host, parts->port.c_str(), &hints, &list); code != 0) {
    return failure(no_address_error(address, code));
  }
  return AddressList(list, &::freeaddrinfo);
}

Status check_reach(const addrinfo& info, TcpReach reach, const std::string& address) {
  if (reach == TcpReach::kAnywhere || is_loopback(info.ai_addr)) return {};
  return failure(EPERM, "address " + address +
                            " is reachable from other machines, and without authentication they "
                            "could read and write images: use --key-file (create one with `ppmr "
                            "keygen`) or --tls-cert, or --insecure on a network that you trust");
}

// An IPv4 peer of a socket for all addresses is shown as IPv4, as in the configuration of its node.
std::string printable(const sockaddr* address, socklen_t length) {
  sockaddr_in plain{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
      plain.sin_port = v6->sin6_port;
      std::memcpy(&plain.sin_addr, &v6->sin6_addr.s6_addr[12], sizeof plain.sin_addr);
      address = reinterpret_cast<const sockaddr*>(&plain);
      length = sizeof plain;
    }
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(address, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool v6 = address->sa_family == AF_INET6;
  return (v6 ? "[" : "") + std::string(host) + (v6 ? "]:" : ":") + port;
}

// Returns the error of a failed connect, with a remedy for the operator.
tl::unexpected<Error> connect_failure(const std::string& name, int error) {
  tl::unexpected<Error> failed = system_failure("connect to", name, error);
  std::string& message = failed.value().message;
  switch (error) {
    case ECONNREFUSED:
      message +=
          ": nothing listens there: start `ppmr target` there (for jobs: `ppmr job agent`), or "
          "correct the port";
      break;
    case ENETUNREACH:
    case EHOSTUNREACH:
      message += ": correct the address, or the route to it";
      break;
    case ETIMEDOUT:
      message += ": no answer: is the host up, and does its firewall let the port through?";
      break;
    default:
      break;
  }
  return failed;
}

Result<UniqueFd> begin_to_connect(const addrinfo& info, const std::string& name) {
  UniqueFd socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol));
  if (!socket) return system_failure("create a socket for", name);
  if (::connect(socket.get(), info.ai_addr, info.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return connect_failure(name, errno);
  }
  return socket;
}

// Waits until the socket is connected, and makes it a blocking socket.
Status await_connected(const UniqueFd& socket, std::chrono::milliseconds timeout,
                       const std::string& name) {
  pollfd wait{socket.get(), POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&wait, 1, static_cast<int>(timeout.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return connect_failure(name, ETIMEDOUT);
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return connect_failure(name, error);
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  return {};
}

class TcpConnector final : public Connector {
 public:
  // `users`: checks the user at the other end; null: any user may be there.
  TcpConnector(std::string address, Dial dial, std::optional<PeerUsers> users)
      : address_(std::move(address)), dial_(std::move(dial)), users_(std::move(users)) {}

  Result<std::unique_ptr<Connection>> connect(std::chrono::milliseconds timeout) override {
    Error last{kNoAddress, "connect to " + address_ + ": no address"};
    for (size_t number = 0;; ++number) {
      auto socket = dial_(number);
      if (!socket && socket.error().errno_value == ENOENT) return failure(last);
      if (!socket && is_final(socket.error())) return failure(socket.error());
      const Status connected =
          socket ? await_connected(*socket, timeout, address_) : Status(failure(socket.error()));
      if (!connected) {
        last = connected.error();
        continue;
      }
      if (users_) {
        if (const Status checked = users_->check_target(socket->get()); !checked) {
          return failure(checked.error().errno_value,
                         "connect to " + address_ + ": " + checked.error().message);
        }
      }
      return std::make_unique<TcpConnection>(std::move(*socket), address_);
    }
  }
  const std::string& target() const override { return address_; }

 private:
  // Returns whether the connector should give up, because another address would not help.
  static bool is_final(const Error& error) {
    return error.errno_value == EPERM || error.errno_value == kNoAddress ||
           error.errno_value == EPIPE;
  }

  const std::string address_;
  const Dial dial_;
  const std::optional<PeerUsers> users_;
};

class TcpListener final : public Listener {
 public:
  TcpListener(UniqueFd socket, UniqueFd closed_event, std::string address)
      : socket_(std::move(socket)),
        closed_event_(std::move(closed_event)),
        address_(std::move(address)) {}

  Result<std::unique_ptr<Connection>> accept() override {
    for (;;) {
      pollfd waits[] = {{socket_.get(), POLLIN, 0}, {closed_event_.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR)
        return system_failure("wait for connections at", address_);
      if (waits[1].revents != 0)
        return system_failure("accept a connection at", address_, ECANCELED);
      if (waits[0].revents == 0) continue;
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      UniqueFd socket(
          ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
      if (!socket) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
        return system_failure("accept at", address_);
      }
      return std::make_unique<TcpConnection>(std::move(socket),
                                             printable(reinterpret_cast<sockaddr*>(&from), length));
    }
  }
  void close() override { ::eventfd_write(closed_event_.get(), 1); }
  const std::string& address() const override { return address_; }

 private:
  const UniqueFd socket_;
  const UniqueFd closed_event_;
  const std::string address_;
};

}  // namespace

Result<std::unique_ptr<Connector>> tcp_connector(const std::string& address, TcpReach reach,
                                                 Dial dial) {
  if (auto parts = split_address(address); !parts) return failure(parts.error());
  std::optional<PeerUsers> users;
  if (reach == TcpReach::kLoopback) {
    auto opened = PeerUsers::open();
    if (!opened) return failure(opened.error());
    users = std::move(*opened);
  }
  if (!dial) {
    dial = [address, reach](size_t number) { return begin_to_connect(address, reach, number); };
  }
  return std::make_unique<TcpConnector>(address, std::move(dial), std::move(users));
}

Result<UniqueFd> begin_to_connect(const std::string& address, TcpReach reach, size_t number) {
  auto list = resolve(address, 0);
  if (!list) return failure(list.error());
  const addrinfo* info = list->get();
  for (; info != nullptr && number > 0; --number) info = info->ai_next;
  if (info == nullptr) return failure(ENOENT, "connect to " + address + ": no more addresses");
  if (auto allowed = check_reach(*info, reach, address); !allowed) return failure(allowed.error());
  return begin_to_connect(*info, address);
}

// Returns a bound socket. A socket for all addresses (::) takes IPv4 too, whatever the system's
// default is.
Result<UniqueFd> bind_to(const addrinfo& info, const std::string& address) {
  UniqueFd socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol));
  if (!socket) return system_failure("create a socket for", address);
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (info.ai_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(socket.get(), info.ai_addr, info.ai_addrlen) != 0) {
    if (errno == EADDRINUSE) {
      return failure(EADDRINUSE, "listen on " + address +
                                     ": Address already in use: `ss -lntp` shows the program that "
                                     "uses it: end it, or choose another port");
    }
    return system_failure("listen on", address);
  }
  return socket;
}

// Binds to an address of an empty host. Tries IPv6 first, because a socket for IPv6 takes IPv4 too.
// On a system without IPv6, binds to the IPv4 address.
Result<UniqueFd> bind_to_first(const addrinfo* list, const std::string& address) {
  Result<UniqueFd> bound = failure(ENOENT, "listen on " + address + ": no address");
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
      if (info->ai_family != family) continue;
      bound = bind_to(*info, address);
      if (bound) return bound;
      const int code = bound.error().errno_value;
      if (code != EAFNOSUPPORT && code != EADDRNOTAVAIL) return bound;
    }
  }
  return bound;
}

Result<std::unique_ptr<Listener>> tcp_listener(const std::string& address, TcpReach reach) {
  auto list = resolve(address, AI_PASSIVE);
  if (!list) return failure(list.error());
  if (auto allowed = check_reach(**list, reach, address); !allowed) {
    return failure(allowed.error());
  }
  const bool is_for_all = address.starts_with(':');
  auto found = is_for_all ? bind_to_first(list->get(), address) : bind_to(**list, address);
  if (!found) return failure(found.error());
  UniqueFd socket = std::move(*found);
  if (::listen(socket.get(), SOMAXCONN) != 0) return system_failure("listen on", address);
  UniqueFd closed_event(::eventfd(0, EFD_CLOEXEC));
  if (!closed_event) return system_failure("create an eventfd for", address);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  return std::make_unique<TcpListener>(std::move(socket), std::move(closed_event),
                                       printable(reinterpret_cast<sockaddr*>(&bound), length));
}

bool is_near(std::chrono::microseconds round_trip) { return round_trip <= kNearRoundTrip; }

void use_cubic(int socket) {
  ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kUnpacedCongestionControl,
               sizeof kUnpacedCongestionControl - 1);
}

Result<std::chrono::microseconds> measure_round_trip(const std::string& address,
                                                     std::chrono::milliseconds timeout) {
  auto list = resolve(address, 0);
  if (!list) return failure(list.error());
  const auto socket = begin_to_connect(**list, address);
  if (!socket) return failure(socket.error());
  if (Status done = await_connected(*socket, timeout, address); !done) return failure(done.error());
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket->get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt == 0) {
    return failure(EOPNOTSUPP,
                   "measure the round trip to " + address + ": the kernel has no measurement");
  }
  return std::chrono::microseconds(info.tcpi_rtt);
}

Result<bool> is_loopback_address(const std::string& address) {
  auto list = resolve(address, AI_PASSIVE);
  if (!list) return failure(list.error());
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    if (!is_loopback(info->ai_addr)) return false;
  }
  return true;
}

}  // namespace ppmr
