#include "fuse_source/seal_requests.h"

namespace ppmr {

SealRequests::SealRequests(std::function<void(uint64_t)> serve)
    : serve_(std::move(serve)), thread_([this] { run(); }) {}

SealRequests::~SealRequests() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SealRequests::add(uint64_t top_node) {
  MutexLock lock(mutex_);
  top_nodes_.push(top_node);
  changed_.notify_all();
}

void SealRequests::run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_,
                  [this]() PPMR_REQUIRES(mutex_) { return stopping_ || !top_nodes_.empty(); });
    if (stopping_) return;
    const uint64_t top_node = top_nodes_.front();
    top_nodes_.pop();
    lock.unlock();
    serve_(top_node);
    lock.lock();
  }
}

}  // namespace ppmr
