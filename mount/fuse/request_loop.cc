#include "mount/fuse/request_loop.h"

#include <signal.h>

#include <algorithm>
#include <chrono>

namespace ppmr {
namespace {

constexpr size_t kUsualWorkersMin = 2;
constexpr size_t kUsualWorkersMax = 8;
constexpr size_t kBuffersPerWorker = 4;

// A worker that processes a request for longer may be waiting for something: no request takes that
// long by itself, even on a busy core. A thread for every request that meets no receiver cost more
// than the request: with two writers of 4 KiB four fifths.
constexpr std::chrono::milliseconds kPatience{4};

// Wakes a worker out of read(2); the default action would end the process.
constexpr int kWakeSignal = SIGUSR1;

void install_wake_handler() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(kWakeSignal, &action, nullptr);  // without SA_RESTART: read(2) returns EINTR
}

}  // namespace

namespace {

class HeapRequestBuffer final : public RequestBuffer {
 public:
  std::span<std::byte> take() override { return {memory_.get(), kRequestMinBytes}; }
  void give_back() override {}

 private:
  const std::unique_ptr<std::byte[]> memory_{new std::byte[kRequestMinBytes]};
};

}  // namespace

std::unique_ptr<RequestBuffer> HeapRequestBuffers::make() {
  return std::make_unique<HeapRequestBuffer>();
}

RequestLoopOptions RequestLoopOptions::for_buffers(size_t buffers) {
  const size_t most = std::clamp(buffers / kBuffersPerWorker, kUsualWorkersMin, kUsualWorkersMax);
  RequestLoopOptions options;
  options.workers_usual =
      std::clamp<size_t>(std::thread::hardware_concurrency() + 2, kUsualWorkersMin, most);
  return options;
}

RequestLoop::RequestLoop(FuseMount& mount, RequestBuffers& buffers, RequestLoopOptions options)
    : mount_(mount), buffers_(buffers), options_(options) {
  install_wake_handler();
}

void RequestLoop::run(const std::function<void()>& ending) {
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < options_.workers_usual; ++i) start_worker_locked();
  watch_workers(lock);
  lock.unlock();
  ending();
  lock.lock();
  // A signal that comes just before read(2) is lost, so it is sent until everybody has left.
  while (workers_ > 0) {
    for (pthread_t worker : receiving_) ::pthread_kill(worker, kWakeSignal);
    changed_.wait_for(lock, std::chrono::milliseconds(10));
  }
}

// Returns when the loop is to stop.
void RequestLoop::watch_workers(std::unique_lock<std::mutex>& lock) {
  while (!stopping_) {
    if (!watching_) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t returns = returns_;
    changed_.wait_for(lock, kPatience);
    if (!receiving_.empty()) {
      watching_ = false;
    } else if (returns == returns_ && workers_ < options_.workers_max && !stopping_) {
      start_worker_locked();
    }
  }
}

void RequestLoop::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

size_t RequestLoop::workers() const {
  std::lock_guard lock(mutex_);
  return workers_;
}

void RequestLoop::start_worker_locked() {
  ++workers_;
  std::thread([this] { work(); }).detach();  // run() waits for workers_ to become 0
}

void RequestLoop::work() {
  const std::unique_ptr<RequestBuffer> buffer = buffers_.make();
  std::unique_lock lock(mutex_);
  while (!stopping_ && receiving_.size() < options_.workers_usual) {
    const auto self = receiving_.insert(receiving_.end(), ::pthread_self());
    lock.unlock();
    fuse_buf request{};
    request.mem = buffer->take().data();
    const int received = fuse_session_receive_buf(mount_.session(), &request);
    lock.lock();
    receiving_.erase(self);
    if (received == 0 || (received < 0 && received != -EINTR && received != -EAGAIN)) {
      stopping_ = true;  // unmounted
    }
    const bool news = stopping_ || (receiving_.empty() && !std::exchange(watching_, true));
    lock.unlock();
    if (news) changed_.notify_all();
    if (received > 0) fuse_session_process_buf(mount_.session(), &request);
    buffer->give_back();
    lock.lock();
    ++returns_;
  }
  --workers_;
  changed_.notify_all();
}

}  // namespace ppmr
