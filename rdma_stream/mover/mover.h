// The interfaces between the receiver and the movers. A mover takes pulls from the queue, fetches
// the bytes of a slot at the source to their final place in the image store, and reports the
// result. The TCP mover requests the bytes over a connection; the verbs mover posts an RDMA READ.
#pragma once

#include <cstdint>
#include <span>

#include "rdma_stream/mover/sink.h"

namespace ppmr {

// One chunk to fetch. `pieces` is the memory for the chunk, valid until completed() or lost() is
// called. The chunk may be shorter than the pieces together: it then fills only the first of them.
struct Pull {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t length = 0;
  std::span<const Landing::Piece> pieces;
};

// The pulls of one session. The receiver chooses their order (urgent pulls first) as late as
// possible, so a mover must take a pull only when it can start it at once.
//
// Threads: any. Members do not throw.
class PullQueue {
 public:
  virtual ~PullQueue() = default;
  // Takes the next pull. Without `wait`, returns false if the queue is empty. With `wait`, blocks
  // until there is a pull, and returns false only when the session ends. A mover that uses take()
  // without `wait` sleeps elsewhere; the session wakes it when it queues a pull.
  virtual bool take(Pull& pull, bool wait) = 0;
  // The mover calls this when all bytes are in the pieces. The call verifies them.
  virtual void completed(const Pull& pull) = 0;
  // The mover calls this when the connection broke before the pull was complete. The pull goes back
  // into the queue.
  virtual void lost(const Pull& pull) = 0;
};

// The target's half of a mover, as a session uses it. It works on the queue that it was made with.
//
// Threads: any thread may call pulls_queued() and stop(); one thread creates and finishes it.
class Puller {
 public:
  virtual ~Puller() = default;
  // Called when pulls were queued: wakes a thread that does not wait in take(). Never blocks, so
  // callers may hold locks.
  virtual void pulls_queued() = 0;
  // Called when the session is over. Makes the threads of the puller end, but does not wait for
  // them, and does not report the end.
  virtual void stop() = 0;
  // Calls stop(), then waits until every pull is back in the queue and no thread uses the queue.
  virtual void finish() = 0;
};

}  // namespace ppmr
