// Which way the bytes of a session take: TCP connections or RDMA reads. Each side says what it
// wants and what it has; the target, which pulls, chooses.
#pragma once

#include <string>

#include "buffer_pool/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

enum class TransportMode : uint16_t { kAuto = 1, kVerbs = 2, kTcp = 3 };  // --transport

const char* to_string(TransportMode mode);
const char* to_string(wire::Transport transport);
// "auto", "verbs", "tcp". Errors: EINVAL.
Result<TransportMode> parse_transport_mode(const std::string& text);

// What one side brings.
struct TransportSide {
  TransportMode mode = TransportMode::kAuto;
  bool has_rdma = false;
  std::string why_no_rdma;  // for people, where there is none
};

struct TransportDecision {
  wire::Transport transport = wire::Transport::kNone;  // kNone: the two exclude each other
  // kVerbs: whether the session has to end when verbs do not work after all.
  bool verbs_only = false;
  std::string why;  // why not the other, for people
};

// Whether verbs are to be tried, before any connection was made.
TransportDecision decide_transport(const TransportSide& source, const TransportSide& target);

}  // namespace ppmr
