// The protocol between the two ends of a connection when one of them, or both, move.
//
//     MOVER                                             PEER
//     holds back sends, waits for its own
//     SUSPEND {messages sent}  ------------------->     holds back sends, waits for its own and for
//       asks again until                                the mover's messages
//     <----------------------  DRAINED {messages sent}
//     waits for the peer's messages, destroys its queue pair, moves, makes a new one
//     RECONNECT {address, keys} ------------------>     makes a new queue pair, connects it
//     <------------------------ CONNECTED {address, keys}
//     connects, sends what was held back
//     GO  ---------------------------------------->     sends what was held back
//
// A release that is cancelled ends with CONTINUE in place of all that follows DRAINED.
//
// Every request may be repeated and every reply may be lost. A request carries the serial number of
// its sender's latest decision (leave, stay, return), so a late one is recognised. If both move at
// once, each is the other's peer; if both return at once, the RECONNECT of the lower end counts.
//
// Invariants, which the simulation checks:
// - a queue pair is destroyed only when both ends hold back their sends and nothing is in flight;
// - an end sends only if both queue pairs are connected with each other.
//
// Rejected: a third party that orders the moves of both ends. It would have to survive them.
#pragma once

#include <cstdint>
#include <optional>

#include "verbs_library/protocol/end_id.h"

namespace ppmr::verbs {

enum class RequestKind : uint8_t {
  kSuspend = 1,
  kContinue,
  kReconnect,
  kGo,
  kKeys,
  kWatch,
  kHold
};  // of UD: destination.h

enum class ReplyKind : uint8_t {
  kDrained = 1,  // to SUSPEND: nothing of either end is in flight towards the peer
  kDraining,     // to SUSPEND: ask again
  kOk,           // to CONTINUE and GO
  kConnected,    // to RECONNECT
  kCrossed,      // to RECONNECT: both return, and the peer's own request counts
  kNotYet,       // the peer cannot do it now: ask again
  kStale,        // the request is older than one that has arrived
  kGone,         // the peer has no such queue pair any more, or has given the connection up
  kKeys,         // to KEYS and WATCH
};

// What the queue pair has done so far, measured at the time of the call.
struct Traffic {
  bool sends_done = false;  // every posted send has completed
  uint64_t sent = 0;        // messages that take a receive of the peer
  uint64_t received = 0;
};

// Why an end that will move waits for its peer: for a person who wonders why it was refused.
const char* what_delays(const Traffic& traffic);

struct LinkRequest {
  RequestKind kind = RequestKind::kSuspend;
  uint64_t serial = 0;
  uint64_t sent = 0;
};

struct LinkReply {
  ReplyKind kind = ReplyKind::kStale;
  uint64_t serial = 0;
  uint64_t sent = 0;
};

// What the owner of the link has to do after a request.
enum class LinkAction {
  kNone,
  kReconnect,  // make a new queue pair and connect it to the address in the request; then reply, or
               // fail() if that is not possible
};

// Threads: none; the owner has a lock.
class Link {
 public:
  enum class Phase {
    kOpen,
    kLeaving,     // this end will move; waits until nothing is in flight
    kReady,       // the queue pair may be destroyed
    kAway,        // it is destroyed
    kReturning,   // it was made again, and the peer does not know yet
    kConnected,   // the peer has connected and waits for GO
    kContinuing,  // the release was cancelled, and the peer does not know yet
    kFailed,      // given up: sends end with an error, as if the peer had died
  };

  Link(const EndId& mine, const EndId& peer) : mine_(mine), peer_(peer) {}

  Phase phase() const { return phase_; }
  const EndId& mine() const { return mine_; }
  const EndId& peer() const { return peer_; }

  // Whether sends are held back.
  bool is_gated() const;

  // This end will move. Has no effect, and returns false, while an earlier move of either end is
  // not finished: then ask again later. True also for a link that has failed.
  bool leave();
  // The release is cancelled: the queue pair was not destroyed.
  void stay();
  // Looks whether the queue pair may be destroyed now, which ends kLeaving.
  void observe(const Traffic& traffic);
  bool may_be_destroyed() const { return phase_ == Phase::kReady || phase_ == Phase::kFailed; }
  void left();      // it is destroyed
  void returned();  // it was made again, in the state INIT
  // Called on a new link whose queue pair was made again before it was connected: the peer may have
  // connected to the number that it had before.
  void begin_returned();
  // The peer cannot be reached any more: its process or its queue pair has ended.
  void lose_peer();
  void fail() { phase_ = Phase::kFailed; }

  // The request that this end has to send now. It is sent again until it is answered.
  std::optional<LinkRequest> next_request(const Traffic& traffic);
  // The reply to a request. Returns true if it is CONNECTED and the owner has to connect its queue
  // pair to the address in the reply, or fail().
  bool answered(const LinkRequest& request, const LinkReply& reply);

  struct Handled {
    LinkReply reply;
    LinkAction action = LinkAction::kNone;
  };
  // A request of the peer.
  Handled handle(const LinkRequest& request, const Traffic& traffic);

 private:
  Handled suspend(const LinkRequest& request, const Traffic& traffic);
  Handled reconnect(const LinkRequest& request);
  bool awaits_go() const { return accepted_serial_ != 0; }
  LinkReply reply(ReplyKind kind) const { return {.kind = kind, .serial = serial_}; }

  EndId mine_;
  EndId peer_;
  Phase phase_ = Phase::kOpen;
  uint64_t serial_ = 0;  // grows with each decision of this end

  // About the present move of this end.
  bool has_asked_ = false;                // a SUSPEND may have arrived at the peer
  bool peer_is_gone_ = false;             // no reply is to be expected
  bool ready_by_peer_ = false;            // kReady without a reply: the peer leaves, too
  std::optional<uint64_t> peer_drained_;  // messages that the peer had sent when it was drained

  // About the present move of the peer.
  bool peer_leaves_ = false;       // its SUSPEND holds back the sends of this end
  bool has_told_drained_ = false;  // and it was told that this end is drained
  uint64_t peer_sent_ = 0;         // messages that it had sent
  uint64_t peer_serial_ = 0;       // the newest serial number from the peer
  uint64_t connected_serial_ = 0;  // the peer's, when the queue pairs were connected last
  uint64_t accepted_serial_ = 0;   // of a RECONNECT whose GO has not arrived; 0: none
};

}  // namespace ppmr::verbs
