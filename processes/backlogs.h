// Connections that wait until a program accepts them. CRIU carries some of them, and drops others
// without a message.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "processes/sockets.h"

namespace ppmr {

enum class BacklogKind {
  kTcp,                // CRIU refuses the listening socket, or drops the connection
  kUnixWithData,       // CRIU refuses the socket that has sent the data
  kUnixFromElsewhere,  // the other end does not move
  kUnixToElsewhere,    // the listening end does not move
};

struct Backlog {
  BacklogKind kind = BacklogKind::kTcp;
  uint64_t socket = 0;  // inode of the tree's socket
  std::string name;     // "127.0.0.1:80", "/run/socket", "@abstract"; empty: unnamed

  auto operator<=>(const Backlog&) const = default;
};

// `own`: the inodes of the sockets of one tree. CRIU dumps each tree alone. Unix connections
// without data between them move, and are not in the result. Pure.
std::set<Backlog> find_backlogs(const std::set<uint64_t>& own,
                                const std::vector<InternetSocket>& internet_sockets,
                                const UnixSockets& unix_sockets);

}  // namespace ppmr
