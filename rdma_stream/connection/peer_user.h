// Finds the user at the other end of a TCP connection over loopback. Every user of a machine can
// connect to 127.0.0.1, and can listen there. The kernel shows which user has each socket.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

struct SocketEnd {
  in6_addr address{};  // IPv4 mapped into IPv6
  uint16_t port = 0;
};

// Finds the user of a socket in the text of /proc/net/tcp or tcp6 (proc(5)): the user of the socket
// that is connected from `local` to `remote`. With `listens`, it returns the user of the socket
// that listens at `local`, if there is one: a target opens that socket before it drops its rights,
// and then accepts connections as another user. Returns nullopt if there is no such socket, or if
// its program has closed it.
std::optional<uid_t> find_socket_user(std::string_view text, const SocketEnd& local,
                                      const SocketEnd& remote, bool listens);

// The kernel's tables of TCP sockets. They are opened once, because a daemon may later give up its
// user and the right to open files. Threads: any.
class PeerUsers {
 public:
  // Errors: those of open(2).
  static Result<PeerUsers> open();

  // The following functions check that the other end of a connection over loopback belongs to root,
  // or to the user that this process had in open(). Errors: EACCES.
  //
  // Called at the source. `socket` is connected. Errors: also those of getsockname(2).
  Status check_target(int socket) const;
  // Called at the target. Takes the numeric addresses of the source's end and of the socket that
  // the source has connected to.
  Status check_source(const std::string& source, const std::string& target) const;

 private:
  PeerUsers(UniqueFd v4, UniqueFd v6, uid_t user)
      : v4_(std::move(v4)), v6_(std::move(v6)), user_(user) {}
  Status check(const SocketEnd& peer, const SocketEnd& own, bool listens) const;

  UniqueFd v4_, v6_;  // v6_ is empty if the kernel has no IPv6
  uid_t user_;
};

}  // namespace ppmr
