#include "restart_loader/images/bound_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kFilesMagic = 0x56303138;  // from criu/include/magic.h
constexpr uint32_t kListens = 10;             // TCP_LISTEN
constexpr uint32_t kPortMax = 65535;

// CRIU stores an address as 32-bit words in the byte order of memory, and the port as a number.
template <typename Address>
bool take_address(const criu::inet_sk_entry& entry, Address& address) {
  if (static_cast<size_t>(entry.src_addr_size()) * sizeof(uint32_t) != sizeof address) return false;
  std::array<uint32_t, sizeof address / sizeof(uint32_t)> words{};
  std::copy(entry.src_addr().begin(), entry.src_addr().end(), words.begin());
  std::memcpy(&address, words.data(), sizeof address);
  return true;
}

// Returns whether bind(2) needs an interface for the address.
bool has_scope(const in6_addr& address) {
  return IN6_IS_ADDR_LINKLOCAL(&address) || IN6_IS_ADDR_MC_LINKLOCAL(&address) ||
         IN6_IS_ADDR_MC_NODELOCAL(&address);
}

std::optional<BoundSocket> bound(const criu::inet_sk_entry& entry) {
  const bool listens = entry.type() == SOCK_STREAM && entry.state() == kListens;
  const bool receives = entry.type() == SOCK_DGRAM && entry.src_port() > 0;
  if ((!listens && !receives) || entry.src_port() > kPortMax) return std::nullopt;
  const in_port_t port = htons(static_cast<uint16_t>(entry.src_port()));
  BoundSocket socket{.type = static_cast<int>(entry.type())};
  if (entry.family() == AF_INET) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = port;
    if (!take_address(entry, address.sin_addr)) return std::nullopt;
    socket.address_bytes = sizeof address;
    std::memcpy(&socket.address, &address, sizeof address);
  } else if (entry.family() == AF_INET6) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = port;
    if (!take_address(entry, address.sin6_addr)) return std::nullopt;
    if (has_scope(address.sin6_addr)) return std::nullopt;
    socket.address_bytes = sizeof address;
    std::memcpy(&socket.address, &address, sizeof address);
  } else {
    return std::nullopt;
  }
  return socket;
}

std::string text_of(const BoundSocket& socket) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (socket.address.ss_family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, &socket.address, sizeof address);
    inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(address.sin_port));
  }
  sockaddr_in6 address{};
  std::memcpy(&address, &socket.address, sizeof address);
  inet_ntop(AF_INET6, &address.sin6_addr, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), ntohs(address.sin6_port));
}

}  // namespace

Result<std::vector<BoundSocket>> read_bound_sockets(const std::string& path, uint32_t network) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  return parse_bound_sockets(path, std::move(*bytes), network);
}

Result<std::vector<BoundSocket>> parse_bound_sockets(const std::string& path, std::string bytes,
                                                     uint32_t network) {
  auto image = ImageReader::of(path, std::move(bytes), kFilesMagic);
  if (!image) return failure(image.error());
  std::vector<BoundSocket> sockets;
  while (!image->at_end()) {
    criu::socket_file_entry file;
    if (Status read = image->read(file); !read) return failure(read.error());
    if (!file.has_isk()) continue;
    const bool is_of_node =
        network == 0 || !file.isk().has_ns_id() || file.isk().ns_id() == network;
    if (!is_of_node) continue;
    if (const auto socket = bound(file.isk())) sockets.push_back(*socket);
  }
  return sockets;
}

Status check_free(const BoundSocket& wanted) {
  const UniqueFd socket(::socket(wanted.address.ss_family, wanted.type | SOCK_CLOEXEC, 0));
  if (!socket) return system_failure("make a socket for", text_of(wanted));
  const int on = 1;
  // CRIU does the same for TCP, because connections of an earlier server may still be closing. With
  // this option, UDP sockets would share a port.
  if (wanted.type == SOCK_STREAM) {
    (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (wanted.address.ss_family == AF_INET6) {
    (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&wanted.address),
           wanted.address_bytes) == 0) {
    return {};
  }
  switch (errno) {
    case EADDRNOTAVAIL:
      return failure(EADDRNOTAVAIL,
                     fmt::format("{}: this node does not have this address: add it to an "
                                 "interface, or choose another node",
                                 text_of(wanted)));
    case EADDRINUSE:
      return failure(EADDRINUSE, fmt::format("{}: another program here uses this address and port: "
                                             "end it (ss -lntup shows it), or choose another node",
                                             text_of(wanted)));
    default:
      return system_failure("bind to", text_of(wanted));
  }
}

}  // namespace ppmr
