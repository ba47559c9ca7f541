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

HeapRequestBuffers::~HeapRequestBuffers() {
  for (std::byte* buffer : free_) delete[] buffer;
}

std::span<std::byte> HeapRequestBuffers::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return {new std::byte[kRequestMinBytes], kRequestMinBytes};
  std::byte* const buffer = free_.front();
  free_.pop_front();
  return {buffer, kRequestMinBytes};
}

void HeapRequestBuffers::give_back(std::span<std::byte> buffer) {
  std::lock_guard lock(mutex_);
  free_.push_front(buffer.data());
}

RequestLoop::RequestLoop(FuseMount& mount, RequestBuffers& buffers, RequestLoopOptions options)
    : mount_(mount), buffers_(buffers), options_(options) {
  install_wake_handler();
}

void RequestLoop::run() {
  std::unique_lock lock(mutex_);
  start_worker_locked();
  changed_.wait(lock, [this] { return stopping_; });
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
  std::unique_lock lock(mutex_);
  while (!stopping_ && receiving_.size() < options_.idle_workers_max) {
    const auto self = receiving_.insert(receiving_.end(), ::pthread_self());
    lock.unlock();
    const std::span<std::byte> memory = buffers_.take();
    fuse_buf request{};
    request.mem = memory.data();
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
    buffers_.give_back(memory);
    lock.lock();
  }
  --workers_;
  changed_.notify_all();
}

}  // namespace ppmr
