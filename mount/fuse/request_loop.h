// The threads that receive and process the requests of a mount. Handlers may wait (for a slot, for
// the peer): where no worker is left receiving and none comes back for some milliseconds, another
// one is started, so that one waiting caller never makes others wait.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "mount/fuse/fuse_mount.h"

namespace ppmr {

// Where one worker receives its requests. Threads: its worker's.
class RequestBuffer {
 public:
  virtual ~RequestBuffer() = default;
  // Room for one request: the chunk (or kRequestMinBytes) and a page more.
  virtual std::span<std::byte> take() = 0;
  // The request received there has been processed.
  virtual void give_back() = 0;
};

// Threads: any.
class RequestBuffers {
 public:
  virtual ~RequestBuffers() = default;
  virtual std::unique_ptr<RequestBuffer> make() = 0;
};

// libfuse reads up to 256 pages and a header page before it knows the mount's max_write.
inline constexpr size_t kRequestMinBytes = (size_t{1} << 20) + 4096;

// Plain memory, for mounts that are only read. Only what requests need of it is ever touched.
class HeapRequestBuffers final : public RequestBuffers {
 public:
  std::unique_ptr<RequestBuffer> make() override;
};

struct RequestLoopOptions {
  // Two more than cores: the next request is received while they process others, which for a write
  // goes on after it was answered. But each may have a buffer of `buffers`, and most of those are
  // not for idle workers.
  static RequestLoopOptions for_buffers(size_t buffers = SIZE_MAX);

  size_t workers_usual = 2;  // there from the beginning, receiving or processing
  size_t workers_max = 512;  // callers that may wait at the same time
};

// Threads: run() by one, stop() by any.
class RequestLoop {
 public:
  RequestLoop(FuseMount& mount, RequestBuffers& buffers, RequestLoopOptions options);

  // Serves requests until the mount is unmounted or stop() is called; then calls `ending`, whose
  // business it is that handlers stop waiting, and returns when all workers have ended.
  void run(const std::function<void()>& ending);
  void stop();
  size_t workers() const;

 private:
  void work();
  void start_worker_locked();
  void watch_workers(std::unique_lock<std::mutex>& lock);

  FuseMount& mount_;
  RequestBuffers& buffers_;
  const RequestLoopOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::list<pthread_t> receiving_;  // workers that may be blocked in read(2)
  size_t workers_ = 0;
  uint64_t returns_ = 0;   // of workers that had processed a request
  bool watching_ = false;  // since lately no worker was left receiving
  bool stopping_ = false;
};

}  // namespace ppmr
