// The peer to which a program connects a queue pair, at that moment.
#pragma once

#include <optional>

#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

struct FoundPeer {
  EndFile file;
  bool has_moved = false;
  Gid gid = {};  // the real ones, if it has moved
  uint32_t qpn = 0;
  std::vector<KeyPair> keys;
};

// Looks the peer up in the directory. A peer that has moved is asked for its keys, and one that
// moves at this moment is waited for, at most for the hold limit. Nothing if the directory does not
// have it: then it has no movable verbs, and only a move is impossible.
//
// Threads: any, without World::control, because the peer may connect to this process meanwhile.
std::optional<FoundPeer> find_peer(const Qp& qp, const EndId& peer);

}  // namespace ppmr::verbs
