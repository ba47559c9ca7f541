// The events of a node's connections, for its audit trail.
#pragma once

#include <functional>
#include <string>

namespace ppmr {

struct ConnectionEvent {
  std::string outcome;  // "accepted", "resumed", "refused", "ended"
  std::string service;  // "source", "data", "migrate"; empty: the peer has not said
  std::string address;
  std::string peer;  // PeerIdentity::text(); empty: not known
  std::string name;  // the name that the peer claims; any bytes
  std::string reason;
  // True if the peer is a stranger, which can cause any number of such events.
  bool from_stranger = false;
};

// Threads: any thread may call the function.
using OnConnectionEvent = std::function<void(const ConnectionEvent&)>;

}  // namespace ppmr
