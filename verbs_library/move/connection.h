// What a connected queue pair needs for moves: the link, and how the peer can be reached.
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
  const char* problem = nullptr;     // why it can never be moved
  std::optional<EndFile> peer_file;  // the newest that is known of the peer
  GidEntry gid;                      // of this end on this machine; index of the real path
  uint32_t psn = 0;                  // with which the real queue pair sends
  bool is_fresh = false;             // the real queue pair is in INIT, and was never connected

  bool is_gated = false;            // what Qp::is_gated was set to
  std::optional<Time> waits_since;  // sends are held back and this process is not away
  Call call;
  LinkRequest asked;  // the request of `call`
  Time ask_again = {};
  int refused_in_a_row = 0;  // nothing listens at the peer's address
};

}  // namespace ppmr::verbs
