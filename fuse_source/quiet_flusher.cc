#include "fuse_source/quiet_flusher.h"

#include "mount/front_end.h"

namespace ppmr {

namespace {
constexpr std::chrono::microseconds kQuiet{1000};
}  // namespace

QuietFlusher::~QuietFlusher() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void QuietFlusher::watch(std::shared_ptr<FileWriter> writer) {
  MutexLock lock(mutex_);
  watched_.push_back(std::move(writer));
  if (watched_.size() == 1) changed_.notify_all();
}

void QuietFlusher::run() {
  std::list<std::shared_ptr<FileWriter>> round;
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (watched_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    changed_.wait_for(mutex_, kQuiet, [this]() PPMR_REQUIRES(mutex_) { return stopping_; });
    round.swap(watched_);
    lock.unlock();
    std::erase_if(round, [](auto& writer) {
      bool done = true;
      const Status flushed = without_exceptions([&]() -> Status {
        done = writer->flush_if_quiet(kQuiet);
        return {};
      });
      if (!flushed) writer->stream().checkpoint_error()->set(flushed.error());
      return done;
    });
    lock.lock();
    watched_.splice(watched_.end(), round);
  }
}

}  // namespace ppmr
