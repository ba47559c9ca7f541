// Working memory for one chunk at a time: a thread takes a context, uses it, and returns it. So no
// chunk needs an allocation, and no thread holds a lock while it uses a context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace ppmr {

// Makes a context when none is idle, up to `contexts_max` contexts. Beyond this number, take()
// waits for an idle context.
//
// Threads: any. The pool must live longer than its leases.
template <typename Context>
class ContextPool {
 public:
  static constexpr size_t kNoLimit = SIZE_MAX;

  class Lease {
   public:
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (context_) pool_->give_back(std::move(context_));
    }
    Context& operator*() const { return *context_; }
    Context* operator->() const { return context_.get(); }

   private:
    friend class ContextPool;
    Lease(ContextPool* pool, std::unique_ptr<Context> context)
        : pool_(pool), context_(std::move(context)) {}

    ContextPool* pool_;
    std::unique_ptr<Context> context_;
  };

  explicit ContextPool(size_t contexts_max = kNoLimit) : contexts_max_(contexts_max) {
    idle_.reserve(64);  // a session has fewer threads
  }

  Lease take() {
    MutexLock lock(mutex_);
    returned_.wait(
        mutex_, [this]() PPMR_REQUIRES(mutex_) { return !idle_.empty() || made_ < contexts_max_; });
    if (idle_.empty()) {
      auto made = std::make_unique<Context>();
      ++made_;
      return Lease(this, std::move(made));
    }
    auto context = std::move(idle_.back());
    idle_.pop_back();
    return Lease(this, std::move(context));
  }

 private:
  void give_back(std::unique_ptr<Context> context) {
    {
      MutexLock lock(mutex_);
      idle_.push_back(std::move(context));
    }
    returned_.notify_one();
  }

  const size_t contexts_max_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<std::unique_ptr<Context>> idle_ PPMR_GUARDED_BY(mutex_);
  size_t made_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
