#include "rdma_stream/session/transport.h"

namespace ppmr {

const char* to_string(TransportMode mode) {
  switch (mode) {
    case TransportMode::kAuto:
      return "auto";
    case TransportMode::kVerbs:
      return "verbs";
    case TransportMode::kTcp:
      return "tcp";
  }
  return "unknown";
}

const char* to_string(wire::Transport transport) {
  switch (transport) {
    case wire::Transport::kNone:
      return "none";
    case wire::Transport::kTcp:
      return "tcp";
    case wire::Transport::kVerbs:
      return "verbs";
  }
  return "unknown";
}

Result<TransportMode> parse_transport_mode(const std::string& text) {
  for (const auto mode : {TransportMode::kAuto, TransportMode::kVerbs, TransportMode::kTcp}) {
    if (text == to_string(mode)) return mode;
  }
  return failure(EINVAL, "transport '" + text + "': must be auto, verbs or tcp");
}

bool may_use_tcp(TransportMode mode) { return mode != TransportMode::kVerbs; }

TransportDecision decide_transport(const TransportSide& source, const TransportSide& target) {
  // The reported reason is the first condition that rules verbs out.
  std::string against;
  if (source.mode == TransportMode::kTcp) {
    against = "the source has --transport tcp";
  } else if (target.mode == TransportMode::kTcp) {
    against = "the target has --transport tcp";
  } else if (!source.has_rdma) {
    against = "the source has no RDMA: " + source.why_no_rdma;
  } else if (!target.has_rdma) {
    against = "the target has no RDMA: " + target.why_no_rdma;
  }
  const bool has_no_other = !may_use_tcp(source.mode) || !may_use_tcp(target.mode);
  if (against.empty()) return {wire::Transport::kVerbs, has_no_other, "both sides have RDMA"};
  if (!has_no_other) return {wire::Transport::kTcp, false, against};
  const char* const side = may_use_tcp(source.mode) ? "target" : "source";
  return {wire::Transport::kNone, true,
          "the " + std::string(side) + " has --transport verbs, but " + against};
}

}  // namespace ppmr
