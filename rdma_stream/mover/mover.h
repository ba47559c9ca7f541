// The seam between the receiver and the way in which bytes travel: a mover takes pulls from the
// queue, brings the bytes of a slot at the source to their final place here, and says so. The TCP
// mover asks for them over a connection; a verbs mover posts an RDMA READ.
#pragma once

#include <cstdint>
#include <span>

#include "rdma_stream/mover/sink.h"

namespace ppmr {

// One chunk to be fetched. The pieces stay valid until the pull is completed or lost.
struct Pull {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t length = 0;
  std::span<const Landing::Piece> pieces;
};

// A mover that sleeps in take() is woken there. One that sleeps elsewhere asks without waiting, and
// is told by pulls_queued() of what came since.
//
// Threads: any. The order in which pulls come is the receiver's choice (urgent ones first), made as
// late as possible: a mover takes a pull only when it can start it.
class PullQueue {
 public:
  virtual ~PullQueue() = default;
  // False when there is none; waits for one if `wait`. False after close() in any case.
  virtual bool take(Pull& pull, bool wait) = 0;
  // The bytes are in the pieces (and are verified now, by the calling thread).
  virtual void completed(const Pull& pull) = 0;
  // The connection broke before they were: the pull is queued again.
  virtual void lost(const Pull& pull) = 0;
};

}  // namespace ppmr
