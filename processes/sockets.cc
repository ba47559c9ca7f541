#include "processes/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <sstream>

#include "base/unique_fd.h"
#include "processes/proc_files.h"
#include "processes/visit_namespace.h"

namespace ppmr {
namespace {

constexpr int kListening = 10;  // TCP_LISTEN

// Parses "0100007F:1F90" (127.0.0.1:8080): hexadecimal 32-bit words in the byte order of this
// machine, then the port as a number.
bool parse_end(std::string_view text, std::string& address, uint16_t& port) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || (colon != 8 && colon != 32)) return false;
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < colon / 8; ++i)
    std::from_chars(text.data() + 8 * i, text.data() + 8 * i + 8, words[i], 16);
  char shown[INET6_ADDRSTRLEN] = "";
  inet_ntop(colon == 8 ? AF_INET : AF_INET6, words.data(), shown, sizeof(shown));
  address = shown;
  if (address.starts_with("::ffff:") && address.find('.') != std::string::npos)
    address.erase(0, 7);  // IPv4 through an IPv6 socket
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), port, 16);
  return true;
}

void take_attributes(const nlmsghdr* header, UnixSockets& sockets) {
  const auto* message = static_cast<const unix_diag_msg*>(NLMSG_DATA(header));
  UnixSocket& socket = sockets[message->udiag_ino];
  socket.type = message->udiag_type;
  socket.listens = message->udiag_state == kListening;
  auto left = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof(*message)));
  for (auto* attribute = reinterpret_cast<const rtattr*>(message + 1); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    const auto* data = static_cast<const char*>(RTA_DATA(attribute));
    const size_t size = RTA_PAYLOAD(attribute);
    if (attribute->rta_type == UNIX_DIAG_PEER && size >= sizeof(uint32_t)) {
      uint32_t peer = 0;
      std::memcpy(&peer, data, sizeof(peer));
      socket.peer = peer;
    }
    if (attribute->rta_type == UNIX_DIAG_RQLEN && size >= sizeof(unix_diag_rqlen)) {
      unix_diag_rqlen queues{};
      std::memcpy(&queues, data, sizeof(queues));
      if (!socket.listens) socket.unread_bytes = queues.udiag_wqueue;
    }
    if (attribute->rta_type == UNIX_DIAG_ICONS) {
      for (size_t at = 0; at + sizeof(uint32_t) <= size; at += sizeof(uint32_t)) {
        uint32_t waiting = 0;
        std::memcpy(&waiting, data + at, sizeof(waiting));
        socket.waiting.push_back(waiting);
      }
    }
    if (attribute->rta_type == UNIX_DIAG_NAME && size > 0) {
      if (data[0] == '\0') {
        socket.path = "@" + std::string(data + 1, size - 1);
      } else {
        socket.path = std::string(data, strnlen(data, size));
      }
    }
  }
}

// Lists the sockets in the network namespace of the calling thread.
Result<UnixSockets> query_unix_sockets() {
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return system_failure("query the kernel for", "Unix sockets");
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } query{};
  query.header.nlmsg_len = sizeof(query);
  query.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  query.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  query.request.sdiag_family = AF_UNIX;
  query.request.udiag_states = ~0U;
  query.request.udiag_show =
      UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_ICONS;
  if (send(netlink.get(), &query, sizeof(query), 0) < 0)
    return system_failure("query the kernel for", "Unix sockets");
  UnixSockets sockets;
  for (;;) {
    alignas(nlmsghdr) char buffer[32768];
    const ssize_t got = recv(netlink.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure("query the kernel for", "Unix sockets");
    if (got == 0) return failure(EIO, "query the kernel for Unix sockets: incomplete reply");
    auto left = static_cast<unsigned>(got);
    for (auto* header = reinterpret_cast<const nlmsghdr*>(buffer); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return sockets;
      if (header->nlmsg_type == NLMSG_ERROR) {
        const auto* error = static_cast<const nlmsgerr*>(NLMSG_DATA(header));
        return system_failure("query the kernel for",
                              "Unix sockets (does it lack CONFIG_UNIX_DIAG?)", -error->error);
      }
      if (header->nlmsg_len >= NLMSG_LENGTH(sizeof(unix_diag_msg)))
        take_attributes(header, sockets);
    }
  }
}

}  // namespace

std::vector<InternetSocket> parse_internet_sockets(std::string_view text,
                                                   const std::string& protocol) {
  std::vector<InternetSocket> sockets;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);  // column names
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, skipped;
    InternetSocket socket;
    socket.protocol = protocol;
    fields >> number >> local >> remote >> state >> queues;
    for (int field = 0; field < 4; ++field) fields >> skipped;  // timer, retransmits, uid, timeout
    if (!(fields >> socket.inode)) continue;
    if (!parse_end(local, socket.local_address, socket.local_port) ||
        !parse_end(remote, socket.remote_address, socket.remote_port))
      continue;
    std::from_chars(state.data(), state.data() + state.size(), socket.state, 16);
    // "SENT:RECEIVED". The second number of a listening socket counts connections.
    const size_t received = queues.find(':') + 1;
    if (socket.listens() && received != 0) {
      std::from_chars(queues.data() + received, queues.data() + queues.size(), socket.waiting, 16);
    }
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

Result<std::vector<InternetSocket>> read_internet_sockets(pid_t pid) {
  std::vector<InternetSocket> sockets;
  for (const std::string table : {"tcp", "tcp6", "udp", "udp6"}) {
    const auto text = read_process_file(pid, "net/" + table);
    if (!text) {
      // A kernel without IPv6 has no tcp6 and udp6: that is no error as long as the process exists.
      if (auto alive = read_process_stat(pid); !alive) return failure(alive.error());
      if (text.error().errno_value == ESRCH) continue;
      return failure(text.error());
    }
    auto some = parse_internet_sockets(*text, table.substr(0, 3));
    sockets.insert(sockets.end(), std::make_move_iterator(some.begin()),
                   std::make_move_iterator(some.end()));
  }
  return sockets;
}

Result<UnixSockets> read_unix_sockets(pid_t pid) {
  Result<UnixSockets> sockets = failure(ESRCH, "");
  if (auto visited = visit_namespace(pid, "net", [&] { sockets = query_unix_sockets(); });
      !visited) {
    return failure(visited.error());
  }
  return sockets;
}

}  // namespace ppmr
