// Finds the peer to which a program is about to connect a queue pair.
#pragma once

#include <optional>

#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

struct FoundPeer {
  EndFile file;
  bool has_moved = false;
  Gid gid = {};  // `gid`, `qpn` and `keys` are the real ones; valid if `has_moved`
  uint32_t qpn = 0;
  std::vector<KeyPair> keys;
};

// Looks the peer up in the directory. Requests the keys of a peer that has moved. Waits for a peer
// that moves at this moment, at most for the hold limit. Returns nullopt if the directory does not
// have the peer, so that it has no movable verbs, or if the peer does not answer. Without this
// result the queue pair works, but cannot move.
//
// Threads: any, but without World::control, because the peer may connect to this process meanwhile.
std::optional<FoundPeer> find_peer(const Qp& qp, const EndId& peer);

}  // namespace ppmr::verbs
