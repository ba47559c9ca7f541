// What a connected queue pair needs for moves: the link to its peer, and how to reach the peer.
#pragma once

#include <chrono>
#include <optional>

#include "verbs_library/move/conversation.h"
#include "verbs_library/protocol/choices.h"
#include "verbs_library/protocol/end_file.h"
#include "verbs_library/protocol/link.h"

namespace ppmr::verbs {

using Time = std::chrono::steady_clock::time_point;

// Guarded by World::control.
struct Connection {
  Connection(const EndId& mine, const EndId& peer) : link(mine, peer) {}

  Link link;
  const char* problem = nullptr;     // why the connection can never be moved; null: it can
  std::optional<EndFile> peer_file;  // the newest file of the peer that was read
  GidEntry gid;                      // of this end on this machine; the real queue pair uses it
  uint32_t psn = 0;                  // the first packet number that the real queue pair sends
  bool is_fresh = false;             // the real queue pair is in INIT, and was never connected

  bool is_gated = false;            // whether this connection has gated the sends (Qp::is_gated)
  std::optional<Time> waits_since;  // since when sends are held back and this process is not away
  Call call;
  LinkRequest asked;  // the request of `call`
  Time ask_again = {};
  int refused_in_a_row = 0;  // number of connections that the peer's address has refused in a row
};

}  // namespace ppmr::verbs
