// The sockets on which CRIU's RPC (criu_rpc.h) is spoken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

struct CriuMessage {
  std::string bytes;
  std::vector<UniqueFd> files;
};

struct CriuSockets {
  UniqueFd ours;
  UniqueFd theirs;
};

// Both are closed on exec. Errors: of socketpair(2).
Result<CriuSockets> make_criu_sockets();

// nullopt: the other side has closed, or cannot be heard.
std::optional<CriuMessage> receive_criu_message(int socket);

// False: the other side has closed.
bool send_criu_message(int socket, const CriuMessage& message);

}  // namespace ppmr
