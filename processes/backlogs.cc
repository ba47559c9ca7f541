#include "processes/backlogs.h"

#include <fmt/format.h>

namespace ppmr {

std::set<Backlog> find_backlogs(const std::set<uint64_t>& own,
                                const std::vector<InternetSocket>& internet_sockets,
                                const UnixSockets& unix_sockets) {
  std::set<Backlog> found;
  for (const InternetSocket& socket : internet_sockets) {
    if (!socket.listens() || socket.waiting == 0 || !own.contains(socket.inode)) continue;
    found.insert({BacklogKind::kTcp, socket.inode,
                  fmt::format("{}:{}", socket.local_address, socket.local_port)});
  }
  for (const auto& [inode, listener] : unix_sockets) {
    const bool is_own = own.contains(inode);
    for (const uint64_t waiting : listener.waiting) {
      const auto client = unix_sockets.find(waiting);
      if (!own.contains(waiting)) {
        if (is_own) found.insert({BacklogKind::kUnixFromElsewhere, inode, listener.path});
      } else if (!is_own) {
        found.insert({BacklogKind::kUnixToElsewhere, waiting, listener.path});
      } else if (client != unix_sockets.end() && client->second.unread_bytes > 0) {
        found.insert({BacklogKind::kUnixWithData, inode, listener.path});
      }
    }
  }
  return found;
}

}  // namespace ppmr
