#include "daemon/metrics/loopback_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>

namespace ppmr {
namespace {

constexpr int kBacklog = 8;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

tl::unexpected<Error> refused(const std::string& address, const std::string& why) {
  return failure(EINVAL, "'" + address + "': " + why);
}

Result<Address> parse(const std::string& address) {
  if (address.starts_with("unix:")) {
    return refused(address,
                   "Prometheus cannot scrape a Unix socket: use 127.0.0.1:PORT or [::1]:PORT");
  }
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  if (colon != std::string::npos) {
    const char* const end = address.data() + address.size();
    const auto [last, error] = std::from_chars(address.data() + colon + 1, end, port);
    if (error != std::errc() || last != end) port = 0;
  }
  if (port == 0) return refused(address, "expected 127.0.0.1:PORT or [::1]:PORT, port 1 to 65535");
  const std::string host = address.substr(0, colon);
  Address parsed;
  auto& v4 = reinterpret_cast<sockaddr_in&>(parsed.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(parsed.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    parsed.length = sizeof(v4);
    if (ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) return parsed;
  } else if (host.size() > 2 && host.front() == '[' && host.back() == ']' &&
             ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    parsed.length = sizeof(v6);
    if (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return parsed;
  } else {
    return refused(address, "'" + host + "' is no IP address: use 127.0.0.1:PORT or [::1]:PORT");
  }
  return refused(address,
                 "metrics are not authenticated, so the address must be of this machine alone: use "
                 "127.0.0.1:" +
                     std::to_string(port) +
                     ", and for a Prometheus on another machine a proxy that authenticates it");
}

}  // namespace

Status check_metrics_address(const std::string& address) {
  const auto parsed = parse(address);
  if (!parsed) return failure(parsed.error());
  return {};
}

Result<UniqueFd> listen_on_loopback(const std::string& address) {
  const auto parsed = parse(address);
  if (!parsed) return failure(parsed.error());
  UniqueFd listener(
      ::socket(parsed->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) return system_failure("--metrics: create a socket for", address);
  const int on = 1;
  (void)::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&parsed->storage), parsed->length) !=
      0) {
    if (errno != EADDRINUSE) return system_failure("--metrics: bind to", address);
    return failure(EADDRINUSE, "--metrics: bind to " + address +
                                   ": another program listens there: each daemon needs a port of "
                                   "its own");
  }
  if (::listen(listener.get(), kBacklog) != 0) return system_failure("--metrics: listen", address);
  return listener;
}

}  // namespace ppmr
