#include "verbs_library/protocol/link.h"

#include <algorithm>

namespace ppmr::verbs {

const char* what_delays(const Traffic& traffic) {
  // A device does not report which of these two causes applies.
  if (!traffic.sends_done)
    return "sends do not complete: the peer posts no receives for them, or cannot be reached";
  return "the peer does not answer, or does not take what has arrived";
}

bool Link::is_gated() const {
  return peer_leaves_ || (phase_ != Phase::kOpen && phase_ != Phase::kConnected);
}

bool Link::leave() {
  if (phase_ == Phase::kLeaving || may_be_destroyed()) return true;
  if (awaits_go() || (phase_ != Phase::kOpen && phase_ != Phase::kContinuing)) return false;
  phase_ = Phase::kLeaving;
  ++serial_;
  // The peer may still hold its sends back because of an earlier SUSPEND, if CONTINUE has not
  // arrived. Its answer to that SUSPEND does not count for this move.
  peer_drained_.reset();
  ready_by_peer_ = false;
  return true;
}

void Link::stay() {
  if (phase_ != Phase::kLeaving && phase_ != Phase::kReady) return;
  ++serial_;
  phase_ = has_asked_ && !peer_is_gone_ ? Phase::kContinuing : Phase::kOpen;
  peer_is_gone_ = false;
  peer_drained_.reset();
}

void Link::observe(const Traffic& traffic) {
  if (phase_ != Phase::kLeaving || awaits_go()) return;
  const bool peer_agreed = peer_drained_ && traffic.received == *peer_drained_;
  // A peer that also leaves sends SUSPEND only after its own sends are done.
  const bool peer_leaves_too = peer_leaves_ && has_told_drained_;
  // If the peer is gone, the device completes the sends to it with an error.
  if (traffic.sends_done && (peer_is_gone_ || peer_agreed || peer_leaves_too)) {
    ready_by_peer_ = !peer_is_gone_ && !peer_agreed;
    phase_ = Phase::kReady;
  }
}

void Link::left() {
  if (phase_ == Phase::kReady) phase_ = Phase::kAway;
}

void Link::returned() {
  if (phase_ != Phase::kAway) return;
  ++serial_;
  has_asked_ = false;
  peer_drained_.reset();
  phase_ = peer_is_gone_ ? Phase::kFailed : Phase::kReturning;
}

void Link::begin_returned() {
  ++serial_;
  phase_ = Phase::kReturning;
}

void Link::lose_peer() {
  switch (phase_) {
    case Phase::kLeaving:
      peer_is_gone_ = true;
      break;
    case Phase::kContinuing:
      phase_ = Phase::kOpen;  // the device reports the end of the peer to the program
      break;
    case Phase::kReturning:
    case Phase::kConnected:
      phase_ = Phase::kFailed;
      break;
    case Phase::kOpen:
      if (peer_leaves_) phase_ = Phase::kFailed;
      break;
    case Phase::kReady:
    case Phase::kAway:
    case Phase::kFailed:
      break;
  }
}

std::optional<LinkRequest> Link::next_request(const Traffic& traffic) {
  switch (phase_) {
    case Phase::kLeaving:
      if (peer_is_gone_ || peer_drained_ || !traffic.sends_done) return std::nullopt;
      has_asked_ = true;
      return LinkRequest{RequestKind::kSuspend, serial_, traffic.sent};
    case Phase::kReturning:
      return LinkRequest{RequestKind::kReconnect, serial_, 0};
    case Phase::kConnected:
      return LinkRequest{RequestKind::kGo, serial_, 0};
    case Phase::kContinuing:
      return LinkRequest{RequestKind::kContinue, serial_, 0};
    default:
      return std::nullopt;
  }
}

bool Link::answered(const LinkRequest& request, const LinkReply& reply) {
  if (request.serial != serial_) return false;
  if (reply.kind == ReplyKind::kGone) {
    lose_peer();
    return false;
  }
  switch (request.kind) {
    case RequestKind::kSuspend:
      if (phase_ == Phase::kLeaving && reply.kind == ReplyKind::kDrained)
        peer_drained_ = reply.sent;
      return false;
    case RequestKind::kReconnect:
      if (phase_ != Phase::kReturning || reply.kind != ReplyKind::kConnected) return false;
      phase_ = Phase::kConnected;
      peer_leaves_ = false;
      has_told_drained_ = false;
      accepted_serial_ = 0;
      peer_serial_ = std::max(peer_serial_, reply.serial);
      connected_serial_ = reply.serial;
      return true;
    case RequestKind::kGo:
      if (phase_ == Phase::kConnected && reply.kind == ReplyKind::kOk) phase_ = Phase::kOpen;
      return false;
    case RequestKind::kContinue:
      if (phase_ == Phase::kContinuing && reply.kind == ReplyKind::kOk) {
        phase_ = Phase::kOpen;
        has_asked_ = false;
      }
      return false;
    case RequestKind::kKeys:
    case RequestKind::kWatch:
    case RequestKind::kHold:
      return false;
  }
  return false;
}

Link::Handled Link::suspend(const LinkRequest& request, const Traffic& traffic) {
  if (phase_ == Phase::kReturning || phase_ == Phase::kConnected || phase_ == Phase::kAway ||
      awaits_go())
    return {reply(ReplyKind::kNotYet)};
  peer_leaves_ = true;
  peer_sent_ = request.sent;
  const bool drained = traffic.sends_done && traffic.received == request.sent;
  has_told_drained_ = drained;
  LinkReply answer = reply(drained ? ReplyKind::kDrained : ReplyKind::kDraining);
  answer.sent = traffic.sent;
  return {answer};
}

Link::Handled Link::reconnect(const LinkRequest& request) {
  if (phase_ == Phase::kAway) return {reply(ReplyKind::kNotYet)};
  if (accepted_serial_ == request.serial) return {reply(ReplyKind::kConnected)};  // repeated
  if (request.serial <= connected_serial_) return {reply(ReplyKind::kStale)};
  if (phase_ == Phase::kReturning && mine_ < peer_) return {reply(ReplyKind::kCrossed)};
  if (phase_ == Phase::kReady || phase_ == Phase::kLeaving) {
    phase_ = Phase::kLeaving;
    ++serial_;  // earlier answers of the peer no longer count
    peer_drained_.reset();
  } else if (phase_ != Phase::kLeaving) {
    phase_ = Phase::kOpen;
    has_asked_ = false;
  }
  peer_leaves_ = true;  // until GO
  has_told_drained_ = false;
  accepted_serial_ = request.serial;
  connected_serial_ = request.serial;
  return {reply(ReplyKind::kConnected), LinkAction::kReconnect};
}

Link::Handled Link::handle(const LinkRequest& request, const Traffic& traffic) {
  if (phase_ == Phase::kFailed) return {reply(ReplyKind::kGone)};
  if (request.serial < peer_serial_) return {reply(ReplyKind::kStale)};
  peer_serial_ = request.serial;
  switch (request.kind) {
    case RequestKind::kSuspend:
      return suspend(request, traffic);
    case RequestKind::kReconnect:
      return reconnect(request);
    case RequestKind::kContinue:
      if (awaits_go()) return {reply(ReplyKind::kStale)};
      // The peer has stayed, but this end has destroyed the queue pair that the peer knows. The
      // peer will get a RECONNECT from this end.
      if (phase_ == Phase::kReturning || phase_ == Phase::kAway) return {reply(ReplyKind::kNotYet)};
      peer_leaves_ = false;
      has_told_drained_ = false;
      if (phase_ == Phase::kReady && ready_by_peer_) phase_ = Phase::kLeaving;
      return {reply(ReplyKind::kOk)};
    case RequestKind::kGo:
      if (accepted_serial_ == request.serial) {
        accepted_serial_ = 0;
        peer_leaves_ = false;
      }
      return {reply(ReplyKind::kOk)};
    case RequestKind::kKeys:
      return {reply(ReplyKind::kKeys)};
    case RequestKind::kWatch:
    case RequestKind::kHold:
      break;  // only for UD queue pairs
  }
  return {reply(ReplyKind::kStale)};
}

}  // namespace ppmr::verbs
