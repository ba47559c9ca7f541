// The transport of a session: TCP connections or RDMA reads. Each side reports its mode and its
// devices; the target, which pulls, chooses.
#pragma once

#include <string>

#include "base/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

enum class TransportMode : uint16_t { kAuto = 1, kVerbs = 2, kTcp = 3 };  // --transport

const char* to_string(TransportMode mode);
const char* to_string(wire::Transport transport);
// "auto", "verbs", "tcp". Errors: EINVAL.
Result<TransportMode> parse_transport_mode(const std::string& text);

// Mode and devices of one side.
struct TransportSide {
  TransportMode mode = TransportMode::kAuto;
  bool has_rdma = false;
  std::string why_no_rdma;  // a text for messages, if `has_rdma` is false
};

struct TransportDecision {
  wire::Transport transport = wire::Transport::kNone;  // kNone: none in common
  // With kVerbs: the session must end, not continue over TCP, if no RDMA connection works.
  bool verbs_only = false;
  std::string why;  // the reason for this choice, for messages
};

// The choice before any connection is opened. kVerbs means: try verbs.
TransportDecision decide_transport(const TransportSide& source, const TransportSide& target);

}  // namespace ppmr
