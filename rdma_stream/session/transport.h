// The transport of a session: TCP connections or RDMA reads. Each side reports its mode and its
// devices; the target, which pulls, chooses.
#pragma once

#include <string>

#include "base/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

class VerbsSource;
class VerbsTarget;

enum class TransportMode : uint16_t { kAuto = 1, kVerbs = 2, kTcp = 3 };  // --transport

const char* to_string(TransportMode mode);
const char* to_string(wire::Transport transport);
// Parses "auto", "verbs" or "tcp". Errors: EINVAL.
Result<TransportMode> parse_transport_mode(const std::string& text);
// Returns whether bytes may travel over TCP, from the start or later.
bool may_use_tcp(TransportMode mode);

// What the daemon of a source has opened for its sessions.
struct SourceTransport {
  TransportMode mode = TransportMode::kAuto;
  VerbsSource* verbs = nullptr;  // null without RDMA; lives longer than the sessions
  std::string why_no_verbs = "not set up";
};

// What the daemon of a target has opened for its sessions.
struct TargetTransport {
  TransportMode mode = TransportMode::kAuto;
  VerbsTarget* verbs = nullptr;  // null without RDMA; lives longer than the sessions
  std::string why_no_verbs = "not set up";
};

// Mode and devices of one side.
struct TransportSide {
  TransportMode mode = TransportMode::kAuto;
  bool has_rdma = false;
  std::string why_no_rdma;  // a text for messages, if `has_rdma` is false
};

struct TransportDecision {
  // kNone if the sides have no transport in common.
  wire::Transport transport = wire::Transport::kNone;
  // The session must end if this transport fails. It does not continue over TCP.
  bool has_no_other = false;
  std::string why;  // the reason for this choice, for messages
};

// Returns the choice before any connection is opened. kVerbs means that the target tries verbs.
TransportDecision decide_transport(const TransportSide& source, const TransportSide& target);

}  // namespace ppmr
