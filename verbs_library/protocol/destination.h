// An end to which a UD queue pair sends, as the sender sees it, and the protocol with which a
// sender finds the end after the end's process has moved.
//
//     SENDER                                            END
//     holds its first datagram to the end back
//     WATCH  -------------------------------------->    notes the sender
//     <---------------------------------------- KEYS {address}
//     sends to this address, until
//     <----------------------------------------- HOLD   will move, and asks each noted sender
//     holds back, waits for its own sends               until the sender has answered OK
//     OK  ----------------------------------------->    forgets the sender, destroys its queue pair
//     WATCH, with its next datagram  -------------->    NOT YET, and KEYS when it is back
//
// So no datagram leaves for a queue pair number that may belong to another queue pair already. A
// sender that has moved asks each of its ends again, because it may have missed a HOLD.
//
// Rejected: the protocol of connections (link.h). A UD queue pair can have any number of peers, and
// most of them never send back.
#pragma once

#include <cstdint>

#include "verbs_library/protocol/link.h"

namespace ppmr::verbs {

// What the directory says about an end.
enum class Listing {
  kNone,   // the directory does not have it
  kMoves,  // its process does not answer now
  kHere,
};

// Threads: one at a time; the owner has a lock.
class Destination {
 public:
  enum class Phase {
    kAsking,   // the address of the end is not known, and datagrams are held back
    kKnown,    // datagrams go to the address in the end's answer
    kForeign,  // the end has no movable verbs; datagrams go to the address that the program gave
    kLost,     // the end does not exist any more; datagrams are dropped
  };

  Phase phase() const { return phase_; }
  // The number of the present question. answered() ignores answers to earlier questions.
  uint64_t round() const { return round_; }

  // Takes the entry of the directory. Returns whether the caller must ask the end now.
  bool look(Listing listing);
  // Takes the answer to a WATCH of this round.
  void answered(uint64_t round, ReplyKind kind);
  // Notes that no process listens at the address in the directory.
  void refused();
  // Takes a HOLD: the end will move. Returns the reply. `sends_done`: whether all sends of this
  // queue pair are done.
  ReplyKind hold(bool sends_done);
  // Forgets the address and begins a new round, because this process has moved, or because another
  // end may have the same name now.
  void ask_again();
  void lose() { phase_ = Phase::kLost; }

 private:
  Phase phase_ = Phase::kAsking;
  uint64_t round_ = 0;
  bool was_listed_ = false;
  int refusals_ = 0;  // number of refused connections in a row
};

}  // namespace ppmr::verbs
