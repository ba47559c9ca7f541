#include "processes/connections_in_repair.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

bool is_tcp(int socket) {
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  return getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_TCP;
}

bool is_in_repair(int socket) {
  int repair = 0;
  socklen_t size = sizeof(repair);
  return getsockopt(socket, IPPROTO_TCP, TCP_REPAIR, &repair, &size) == 0 && repair != 0;
}

ConnectionEnd end_of(const sockaddr_storage& storage) {
  ConnectionEnd end;
  if (storage.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(storage);
    end.address.assign(reinterpret_cast<const char*>(&address.sin_addr), sizeof(in_addr));
    end.port = ntohs(address.sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(storage);
    end.address.assign(reinterpret_cast<const char*>(&address.sin6_addr), sizeof(in6_addr));
    if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) end.address.erase(0, 12);
    end.port = ntohs(address.sin6_port);
  }
  return end;
}

// A socket without an address has empty ends.
ConnectionEnd end_of(int socket, decltype(getsockname)* read) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  return read(socket, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? end_of(storage)
                                                                         : ConnectionEnd{};
}

Status add_connections(const ProcessIdentity& task, std::set<uint64_t>& seen,
                       std::vector<TcpConnection>& found) {
  const auto descriptors = read_descriptors(task.pid);
  if (!descriptors) {
    return descriptors.error().errno_value == ESRCH ? Status{} : failure(descriptors.error());
  }
  UniqueFd pidfd;
  for (const Descriptor& descriptor : *descriptors) {
    const uint64_t inode = inode_in(descriptor.target, "socket");
    if (inode == 0 || !seen.insert(inode).second) continue;
    if (!pidfd) {
      auto opened = open_pidfd(task);
      if (!opened && opened.error().errno_value == ESRCH) return {};
      if (!opened) return failure(opened.error());
      pidfd = std::move(*opened);
    }
    UniqueFd socket(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), descriptor.number, 0)));
    if (!socket) {
      if (errno == EBADF || errno == ESRCH) continue;  // closed by now, or the process has ended
      return system_failure("take a copy of a socket of process", std::to_string(task.pid));
    }
    if (!is_tcp(socket.get())) continue;
    const bool in_repair = is_in_repair(socket.get());
    const ConnectionEnd local = end_of(socket.get(), getsockname);
    const ConnectionEnd remote = end_of(socket.get(), getpeername);
    if (remote.address.empty() && !in_repair) continue;
    found.push_back({task, in_repair, std::move(socket), local, remote});
  }
  return {};
}

}  // namespace

std::string text_of(const ConnectionEnd& end) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_ipv4 = end.address.size() == sizeof(in_addr);
  if (!is_ipv4 && end.address.size() != sizeof(in6_addr)) return "(no address)";
  inet_ntop(is_ipv4 ? AF_INET : AF_INET6, end.address.data(), text.data(), text.size());
  return is_ipv4 ? fmt::format("{}:{}", text.data(), end.port)
                 : fmt::format("[{}]:{}", text.data(), end.port);
}

Result<std::vector<TcpConnection>> read_connections(const std::vector<ProcessIdentity>& tasks) {
  std::vector<TcpConnection> found;
  std::set<uint64_t> seen;
  for (const ProcessIdentity& task : tasks) {
    if (Status added = add_connections(task, seen, found); !added) return failure(added.error());
  }
  return found;
}

Status end_repair(const TcpConnection& connection) {
  const int off = 0;
  if (setsockopt(connection.socket.get(), IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)) == 0) {
    return {};
  }
  return system_failure("end the repair mode of the connection",
                        fmt::format("{} of process {} to {}", text_of(connection.local),
                                    connection.process.pid, text_of(connection.remote)));
}

}  // namespace ppmr
