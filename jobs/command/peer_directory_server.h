// The server of a job's directory of peers (jobs/peer_directory.h).
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "jobs/peer_directory.h"

namespace ppmr {

// The names of a job and their texts. Threads: one at a time.
class PeerDirectory {
 public:
  explicit PeerDirectory(std::string token, size_t names_max = size_t{1} << 20)
      : token_(std::move(token)), names_max_(names_max) {}

  // Executes the request, and returns the reply. `request`: the bytes that the client has sent.
  DirectoryReply answer(std::string_view request);

 private:
  const std::string token_;
  const size_t names_max_;
  std::map<std::string, std::string, std::less<>> texts_;
};

// Returns a socket that listens for clients. Other job nodes of the network can connect, too, but
// they do not have the token. Errors: those of bind(2).
Result<UniqueFd> listen_for_peers(uint16_t port = kPeerDirectoryPort);

// Serves clients until the process ends. A slow or silent client does not delay other clients.
// Threads: one.
[[noreturn]] void serve_peer_directory(const UniqueFd& listener, const std::string& token);

}  // namespace ppmr
