#include "mount/request_loop.h"

#include <signal.h>

#include <chrono>

namespace ppmr {
namespace {

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

RequestLoop::RequestLoop(FuseMount& mount, RequestBuffers& buffers, RequestLoopOptions options)
    : mount_(mount), buffers_(buffers), options_(options) {
  install_wake_handler();
}

void RequestLoop::run(const std::function<void()>& ending) {
  std::unique_lock lock(mutex_);
  start_worker_locked();
  changed_.wait(lock, [this] { return stopping_; });
  lock.unlock();
  ending();
  lock.lock();
  // A signal that comes just before read(2) is lost, so it is sent until everybody has left.
  while (workers_ > 0) {
    for (pthread_t worker : receiving_) ::pthread_kill(worker, kWakeSignal);
    changed_.wait_for(lock, std::chrono::milliseconds(10));
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
  while (!stopping_ && receiving_.size() < options_.idle_workers_max) {
    const auto self = receiving_.insert(receiving_.end(), ::pthread_self());
    lock.unlock();
    fuse_buf request{};
    request.mem = buffer->take().data();
    const int received = fuse_session_receive_buf(mount_.session(), &request);
    lock.lock();
    receiving_.erase(self);
    if (received == 0 || (received < 0 && received != -EINTR && received != -EAGAIN)) {
      stopping_ = true;  // unmounted
      changed_.notify_all();
    } else if (received > 0 && receiving_.empty() && workers_ < options_.workers_max) {
      start_worker_locked();
    }
    lock.unlock();
    if (received > 0) fuse_session_process_buf(mount_.session(), &request);
    buffer->give_back();
    lock.lock();
  }
  --workers_;
  changed_.notify_all();
}

}  // namespace ppmr
