#include "fuse_source/reconnector.h"

#include <spdlog/spdlog.h>

#include "base/without_exceptions.h"

namespace ppmr {

Reconnector::Reconnector(std::chrono::milliseconds interval, std::function<Status()> connect)
    : interval_(interval), connect_(std::move(connect)), thread_([this] { watch(); }) {}

Reconnector::~Reconnector() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Reconnector::watch() {
  bool is_lost = false;  // a target that is down for days causes one log line
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait_for(mutex_, interval_, [this]() PPMR_REQUIRES(mutex_) { return stopped_; });
      if (stopped_) return;
    }
    const Status connected = without_exceptions([this] { return connect_(); });
    if (!connected && !is_lost) {
      spdlog::warn("not connected, trying every {} s: {}", interval_.count() / 1000,
                   connected.error().message);
    }
    is_lost = !connected;
  }
}

}  // namespace ppmr
