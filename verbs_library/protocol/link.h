// The protocol between the two ends of a connection when one of them moves, or both move.
//
//     MOVER                                             PEER
//     holds back its sends, waits for those in flight
//     SUSPEND {messages sent}  ------------------->     holds back its sends, waits for those in
//       repeats this until                              flight and for the mover's messages
//     <----------------------  DRAINED {messages sent}
//     waits for the peer's messages, destroys its queue pair, moves, makes a new one
//     RECONNECT {address, keys} ------------------>     makes a new queue pair, connects it
//     <------------------------ CONNECTED {address, keys}
//     connects, sends the held messages
//     GO  ---------------------------------------->     sends the held messages
//
// If a release is cancelled, CONTINUE takes the place of all steps after DRAINED.
//
// Every request may be repeated, and every reply may be lost. A request has the serial number of
// its sender's latest decision (leave, stay, return), so that the receiver recognises a late
// request. If both ends move at once, each is mover and peer. If both return at once, the RECONNECT
// of the lower end counts.
//
// The simulation checks these invariants:
// - a queue pair is destroyed only when both ends hold back their sends and nothing is in flight;
// - an end sends only if both queue pairs are connected with each other.
//
// Rejected: a third process that orders the moves of both ends. It would have to survive the moves.
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
};  // kWatch and kHold are for UD queue pairs, see destination.h

enum class ReplyKind : uint8_t {
  kDrained = 1,  // to SUSPEND: the peer's sends are done, and the mover's messages have arrived
  kDraining,     // to SUSPEND: ask again
  kOk,           // to CONTINUE, GO and HOLD
  kConnected,    // to RECONNECT
  kCrossed,      // to RECONNECT: both ends return, and the RECONNECT of the replying end counts
  kNotYet,       // not possible now: ask again
  kStale,        // the request is older than one that has arrived
  kGone,         // the replying end has no such queue pair, or has given the connection up
  kKeys,         // to KEYS and WATCH
};

// What the queue pair has sent and received so far, measured at the time of the call.
struct Traffic {
  bool sends_done = false;  // every posted send has completed
  uint64_t sent = 0;        // messages that use up a receive of the peer
  uint64_t received = 0;
};

// Returns what an end waits for that will move. A refused release shows this text to the operator.
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

// What the owner of the link must do after a request.
enum class LinkAction {
  kNone,
  kReconnect,  // make a new queue pair and connect it to the address in the request; then reply, or
               // fail() if that is not possible
};

// Threads: one at a time; the owner has a lock.
class Link {
 public:
  enum class Phase {
    kOpen,
    kLeaving,     // this end will move, and waits until nothing is in flight
    kReady,       // the queue pair may be destroyed
    kAway,        // the queue pair is destroyed
    kReturning,   // the queue pair was made again, and the peer has not answered RECONNECT yet
    kConnected,   // the peer has connected and waits for GO
    kContinuing,  // the release was cancelled, and the peer has not answered CONTINUE yet
    kFailed,      // given up: sends end with an error, as if the peer had died
  };

  Link(const EndId& mine, const EndId& peer) : mine_(mine), peer_(peer) {}

  Phase phase() const { return phase_; }
  const EndId& mine() const { return mine_; }
  const EndId& peer() const { return peer_; }

  // Returns whether sends must be held back.
  bool is_gated() const;

  // Begins a move of this end, and returns true. While an earlier move of either end is not
  // finished, has no effect and returns false; the caller then calls it again later. Returns true
  // for a link that has failed.
  bool leave();
  // Cancels the move before the queue pair was destroyed.
  void stay();
  // Checks whether the queue pair may be destroyed now. If so, kReady follows kLeaving.
  void observe(const Traffic& traffic);
  bool may_be_destroyed() const { return phase_ == Phase::kReady || phase_ == Phase::kFailed; }
  void left();      // the queue pair is destroyed
  void returned();  // the queue pair was made again, in the state INIT
  // Begins with kReturning. For a new link whose process has moved before the program connected the
  // queue pair: the peer may have connected to the number that the queue pair had before.
  void begin_returned();
  // Notes that the peer's process or its queue pair has ended.
  void lose_peer();
  void fail() { phase_ = Phase::kFailed; }

  // Returns the request that this end must send now, or nullopt. The owner repeats it until it has
  // the answer.
  std::optional<LinkRequest> next_request(const Traffic& traffic);
  // Takes the reply to a request. Returns true for CONNECTED: then the owner must connect its queue
  // pair to the address in the reply, or call fail().
  bool answered(const LinkRequest& request, const LinkReply& reply);

  struct Handled {
    LinkReply reply;
    LinkAction action = LinkAction::kNone;
  };
  // Handles a request of the peer.
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
  bool peer_is_gone_ = false;             // the peer has ended, and will not reply
  bool ready_by_peer_ = false;            // kReady without a reply, because the peer leaves, too
  std::optional<uint64_t> peer_drained_;  // messages that the peer had sent when it was drained

  // About the present move of the peer.
  bool peer_leaves_ = false;       // its SUSPEND holds back the sends of this end
  bool has_told_drained_ = false;  // this end has answered DRAINED
  uint64_t peer_sent_ = 0;         // messages that the peer had sent at its SUSPEND
  uint64_t peer_serial_ = 0;       // the newest serial number from the peer
  uint64_t connected_serial_ = 0;  // the peer's serial number when the queue pairs last connected
  uint64_t accepted_serial_ = 0;   // of a RECONNECT whose GO has not arrived; 0: none
};

}  // namespace ppmr::verbs
