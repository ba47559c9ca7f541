// Sockets for CRIU's RPC (criu_rpc.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

struct CriuMessage {
  std::string bytes;
  std::vector<UniqueFd> files;
};

struct CriuSockets {
  UniqueFd ours;
  UniqueFd theirs;
};

// Creates two connected sockets, both close-on-exec. Errors: those of socketpair(2).
Result<CriuSockets> make_criu_sockets();

// Blocks until a message arrives. Returns nullopt if the peer has closed its end, or if the message
// cannot be received.
std::optional<CriuMessage> receive_criu_message(int socket);

// Returns the bytes of the next message, which stays in the socket; empty: the peer has closed its
// end, or the message is too long.
std::string peek_criu_message(int socket);

// Returns false if the peer has closed its end.
bool send_criu_message(int socket, const CriuMessage& message);

}  // namespace ppmr
