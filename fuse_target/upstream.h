// Passes messages from the mount and the image store to the receiver, which serves the sources.
// Drops messages while no receiver is attached: the image store is created before the receiver, and
// destroyed after it.
#pragma once

#include <vector>

#include "base/mutex.h"
#include "rdma_stream/session/receiver.h"

namespace ppmr {

// Threads: any.
class Upstream {
 public:
  void attach(Receiver* receiver) {
    WriterLock lock(mutex_);
    receiver_ = receiver;
  }
  // Waits for calls in progress.
  void detach() { attach(nullptr); }

  void space_freed() {
    ReaderLock lock(mutex_);
    if (receiver_ != nullptr) receiver_->space_freed();
  }
  void prioritize(NodeKey file, uint64_t offset, uint64_t length) {
    ReaderLock lock(mutex_);
    if (receiver_ != nullptr) receiver_->prioritize(file, offset, length);
  }
  void want(NodeKey file, uint64_t offset, uint64_t length) {
    ReaderLock lock(mutex_);
    if (receiver_ != nullptr) receiver_->want(file, offset, length);
  }
  void notify_removed(NodeKey checkpoint) {
    ReaderLock lock(mutex_);
    if (receiver_ != nullptr) receiver_->notify_removed(checkpoint);
  }
  Status request_seal(NodeKey checkpoint) {
    ReaderLock lock(mutex_);
    if (receiver_ == nullptr) return failure(ENOTCONN, "the target is shutting down");
    return receiver_->request_seal(checkpoint);
  }
  std::vector<SessionReport> sessions() const {
    ReaderLock lock(mutex_);
    return receiver_ == nullptr ? std::vector<SessionReport>() : receiver_->sessions();
  }

  ReceiverTotals totals() const {
    ReaderLock lock(mutex_);
    return receiver_ == nullptr ? ReceiverTotals() : receiver_->totals();
  }

 private:
  mutable SharedMutex mutex_;
  Receiver* receiver_ PPMR_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace ppmr
