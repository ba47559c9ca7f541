// An end to which a UD queue pair sends, as the sender sees it, and the protocol by which a sender
// learns where an end is when the end's process moves.
//
//     SENDER                                            END
//     holds its first datagram to the end back
//     WATCH  -------------------------------------->    notes the sender
//     <---------------------------------------- KEYS {address}
//     sends to this address, until
//     <----------------------------------------- HOLD   will move, and asks every sender that it
//     holds back, waits for its own sends               knows until it has answered OK
//     OK  ----------------------------------------->    forgets the sender, destroys its queue pair
//     WATCH, with its next datagram  -------------->    NOT YET, and KEYS when it is back
//
// So no datagram leaves for a number that may belong to another queue pair by then. A sender that
// comes back asks about each of its ends again, because it has missed what was said meanwhile.
//
// Rejected: the protocol of connections (link.h). A UD queue pair has any number of peers, and most
// of them never send anything back.
#pragma once

#include <cstdint>

#include "verbs_library/protocol/link.h"

namespace ppmr::verbs {

// What the directory says about an end.
enum class Listing {
  kNone,   // it has no such end
  kMoves,  // its process does not answer now
  kHere,
};

// Threads: none; the owner has a lock.
class Destination {
 public:
  enum class Phase {
    kAsking,   // datagrams are held back until it is known where they go
    kKnown,    // they go where the answer said
    kForeign,  // the end has no movable verbs: they go where the program says
    kLost,     // the end is gone: they go nowhere
  };

  Phase phase() const { return phase_; }
  // Which of this end's questions an answer belongs to.
  uint64_t round() const { return round_; }

  // Takes what the directory says. Returns whether to ask the end now.
  bool look(Listing listing);
  // The answer to a WATCH of this round.
  void answered(uint64_t round, ReplyKind kind);
  // Nothing listens where the directory says that the end is.
  void refused();
  // The end will move. Returns the reply. `sends_done`: all sends of this queue pair.
  ReplyKind hold(bool sends_done);
  // Nothing is certain any more: this process has moved, or the end may be another one by now.
  void ask_again();
  void lose() { phase_ = Phase::kLost; }

 private:
  Phase phase_ = Phase::kAsking;
  uint64_t round_ = 0;
  bool was_listed_ = false;
  int refusals_ = 0;  // in a row
};

}  // namespace ppmr::verbs
