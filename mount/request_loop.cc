#include "mount/request_loop.h"

#include <signal.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <system_error>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr size_t kUsualWorkersMin = 2;
constexpr size_t kUsualWorkersMax = 8;
constexpr size_t kBuffersPerWorker = 4;

// A worker that processes a request for longer than this is probably blocked: no request needs that
// much time, even on a busy core. Until then the loop starts no further worker. An older version
// started one as soon as no worker was receiving; with two writers of 4 KiB, starting workers took
// four fifths of the time.
constexpr milliseconds kBlockedAfter{4};
// While all workers stay blocked, each round starts twice as many workers as the round before, but
// at most this many. A thousand blocked writers therefore delay the next request by about twenty
// rounds, not by a thousand.
constexpr size_t kWorkersPerRoundMax = 64;

constexpr milliseconds kThreadRetryInterval{100};
constexpr milliseconds kBufferRetryInterval{10};

// Interrupts a worker's read(2). The loop installs a handler, because the default action would end
// the process.
constexpr int kWakeSignal = SIGUSR1;

void install_wake_handler() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(kWakeSignal, &action, nullptr);  // without SA_RESTART: read(2) returns EINTR
}

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
  // More workers than cores are slower: on two cores, four workers were up to a third slower than
  // two, with pools of 8 to 64 MiB (bench/README.md).
  options.workers_usual =
      std::clamp<size_t>(std::thread::hardware_concurrency(), kUsualWorkersMin, most);
  return options;
}

RequestLoop::RequestLoop(fuse_session* session, RequestBuffers& buffers, RequestLoopOptions options)
    : session_(session), buffers_(buffers), options_(std::move(options)) {
  install_wake_handler();
}

RequestLoop::~RequestLoop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  await_workers();
  assert(workers_ == 0 && receiving_.empty() && "a worker outlives its loop");
}

Status RequestLoop::start() {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < options_.workers_usual && start_worker_locked(); ++i) {
  }
  if (workers_ > 0) return {};
  return failure(EAGAIN,
                 "start a thread that serves the mount: not allowed (raise the limit of processes: "
                 "ulimit -u, pids.max of the cgroup)");
}

void RequestLoop::run(const std::function<void()>& ending) {
  MutexLock lock(mutex_);
  watch_workers();
  lock.unlock();
  ending();
  lock.lock();
  await_workers();
}

// Starts workers while all are blocked. Returns when the loop stops.
void RequestLoop::watch_workers() {
  size_t round = 1;
  while (!stopping_) {
    if (!watching_) {
      round = 1;
      changed_.wait(mutex_);
      continue;
    }
    const uint64_t returns = returns_;
    changed_.wait_for(mutex_, out_of_threads_ ? kThreadRetryInterval : kBlockedAfter);
    if (!receiving_.empty()) {
      watching_ = false;
      out_of_threads_ = false;
    } else if (returns == returns_ && !stopping_) {
      for (size_t i = 0; i < round && start_worker_locked(); ++i) {
      }
      round = std::min(2 * round, kWorkersPerRoundMax);
    }
  }
}

void RequestLoop::await_workers() {
  // If a signal arrives just before a worker calls read(2), the signal has no effect. The loop
  // therefore sends it again.
  while (workers_ > 0) {
    for (pthread_t worker : receiving_) ::pthread_kill(worker, kWakeSignal);
    changed_.wait_for(mutex_, milliseconds(10));
  }
}

void RequestLoop::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

size_t RequestLoop::workers() const {
  MutexLock lock(mutex_);
  return workers_;
}

bool RequestLoop::start_worker_locked() {
  ++workers_;
  try {
    options_.start_thread([this] { work(); }).detach();  // await_workers() waits for it
    out_of_threads_ = false;
    return true;
  } catch (const std::exception& exception) {
    --workers_;
    if (!std::exchange(out_of_threads_, true)) {
      spdlog::warn("cannot start another thread that serves the mount: {} (threads running: {})",
                   exception.what(), workers_);
    }
    return false;
  }
}

void RequestLoop::work() {
  try {
    serve_requests();
  } catch (const std::exception& exception) {
    spdlog::warn("a thread that serves the mount ends: {}", exception.what());
  }
  MutexLock lock(mutex_);
  assert(workers_ > 0 && "more workers ended than began");
  --workers_;
  if (receiving_.empty()) watching_ = true;  // all workers are busy: run() may have to add one
  changed_.notify_all();
}

void RequestLoop::serve_requests() {
  const std::unique_ptr<RequestBuffer> buffer = buffers_.make();
  std::list<pthread_t> self = {::pthread_self()};
  MutexLock lock(mutex_);
  while (!stopping_ && receiving_.size() < options_.workers_usual) {
    const auto position = self.begin();
    receiving_.splice(receiving_.end(), self);
    lock.unlock();
    fuse_buf request{};
    std::span<std::byte> memory;
    try {
      memory = buffer->take();
    } catch (const std::exception&) {  // no memory is free now
    }
    request.mem = memory.data();
    const int received = memory.empty() ? -EAGAIN : fuse_session_receive_buf(session_, &request);
    lock.lock();
    assert(receiving_.size() <= workers_ && "more workers receive than there are");
    self.splice(self.begin(), receiving_, position);
    if (received == 0 || (received < 0 && received != -EINTR && received != -EAGAIN)) {
      stopping_ = true;  // unmounted
    }
    const bool news = stopping_ || (receiving_.empty() && !std::exchange(watching_, true));
    if (memory.empty()) changed_.wait_for(mutex_, kBufferRetryInterval);
    lock.unlock();
    if (news) changed_.notify_all();
    if (received > 0) fuse_session_process_buf(session_, &request);
    buffer->give_back();
    lock.lock();
    ++returns_;
  }
}

}  // namespace ppmr
