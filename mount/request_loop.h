// The threads that receive and process the requests of a mount. A handler may block (for a slot,
// for the peer). When no worker is free to receive, and none finishes its request for some
// milliseconds, the loop starts more workers. The number of workers has no maximum, so a blocked
// caller never blocks another caller.
#pragma once

#include <fuse3/fuse_lowlevel.h>
#include <pthread.h>

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"

namespace ppmr {

// The memory into which one worker receives its requests. Threads: that worker alone.
class RequestBuffer {
 public:
  virtual ~RequestBuffer() = default;
  // Returns memory for one request: at least max_write plus one page; before the mount knows its
  // max_write, at least kRequestMinBytes. Empty if no memory is free now.
  virtual std::span<std::byte> take() = 0;
  // The worker calls this when it has processed the request in the memory of take().
  virtual void give_back() = 0;
};

// Threads: any.
class RequestBuffers {
 public:
  virtual ~RequestBuffers() = default;
  virtual std::unique_ptr<RequestBuffer> make() = 0;
};

// libfuse reads up to 256 pages and a header page before it has the mount's max_write.
inline constexpr size_t kRequestMinBytes = (size_t{1} << 20) + 4096;

// Heap memory, for mounts that callers only read. The kernel allocates a page only when a request
// fills it.
class HeapRequestBuffers final : public RequestBuffers {
 public:
  std::unique_ptr<RequestBuffer> make() override;
};

struct RequestLoopOptions {
  // Returns options with one worker per core, but at least 2 and at most 8. Each worker may occupy
  // one of `buffers`, so the number of workers above 2 is also at most a quarter of the buffers.
  static RequestLoopOptions for_buffers(size_t buffers = SIZE_MAX);

  // Workers at the start; the loop adds more only while these are blocked.
  size_t workers_usual = 2;
  // Starts a thread; throws std::system_error when that fails. Tests replace this function.
  std::function<std::thread(std::function<void()>)> start_thread = [](std::function<void()> body) {
    return std::thread(std::move(body));
  };
};

// Receives and processes requests in worker threads. If it cannot create a thread, the loop warns,
// serves with the workers that it has, and tries again when it needs more. Only start() fails, if
// it cannot create even one worker.
//
// Threads: start(), run() and the destructor by one, stop() by any.
class RequestLoop {
 public:
  RequestLoop(fuse_session* session, RequestBuffers& buffers, RequestLoopOptions options);
  // Ends the workers.
  ~RequestLoop();

  // Starts the usual workers. Errors: EAGAIN when not even one could be started.
  Status start();
  // Returns when the mount was unmounted or stop() was called, after all workers have ended. Before
  // it waits for the workers it calls `ending`, which makes blocked handlers return.
  void run(const std::function<void()>& ending);
  void stop();
  size_t workers() const;

 private:
  void work();
  void serve_requests();
  bool start_worker_locked() PPMR_REQUIRES(mutex_);
  void watch_workers() PPMR_REQUIRES(mutex_);
  void await_workers() PPMR_REQUIRES(mutex_);

  fuse_session* const session_;
  RequestBuffers& buffers_;
  const RequestLoopOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Workers that may be blocked in read(2).
  std::list<pthread_t> receiving_ PPMR_GUARDED_BY(mutex_);
  size_t workers_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t returns_ PPMR_GUARDED_BY(mutex_) = 0;  // number of requests that workers have finished
  // All workers were busy: run() adds workers if all stay blocked.
  bool watching_ PPMR_GUARDED_BY(mutex_) = false;
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  // The last attempt to start a worker failed.
  bool out_of_threads_ PPMR_GUARDED_BY(mutex_) = false;
};

}  // namespace ppmr
