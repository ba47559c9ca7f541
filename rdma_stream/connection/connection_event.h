// What happens to the connections of a node, for its audit trail.
#pragma once

#include <functional>
#include <string>

namespace ppmr {

struct ConnectionEvent {
  std::string outcome;  // "accepted", "resumed", "refused", "ended"
  std::string service;  // "source", "data", "migrate"; empty: the peer has not said
  std::string address;
  std::string peer;  // PeerIdentity::text(); empty: not known
  std::string name;  // that the peer claims, any bytes
  std::string reason;
  // Whether the peer is a stranger, who can cause any number of such events.
  bool from_stranger = false;
};

// Threads: called by any.
using OnConnectionEvent = std::function<void(const ConnectionEvent&)>;

}  // namespace ppmr
