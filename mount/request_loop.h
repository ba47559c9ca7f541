// The threads that receive and process the requests of a mount. Handlers may wait (for a slot, for
// the peer): whenever no worker is left receiving, another one is started, so that one waiting
// caller never makes others wait.
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

#include "mount/fuse_mount.h"

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
  size_t idle_workers_max = 2;  // receiving at the same time; more than cores do not help
  size_t workers_max = 512;     // callers that may wait at the same time
};

// Threads: run() by one, stop() by any.
class RequestLoop {
 public:
  RequestLoop(FuseMount& mount, RequestBuffers& buffers, RequestLoopOptions options = {});

  // Serves requests until the mount is unmounted or stop() is called; then calls `ending`, whose
  // business it is that handlers stop waiting, and returns when all workers have ended.
  void run(const std::function<void()>& ending);
  void stop();
  size_t workers() const;

 private:
  void work();
  void start_worker_locked();

  FuseMount& mount_;
  RequestBuffers& buffers_;
  const RequestLoopOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::list<pthread_t> receiving_;  // workers that may be blocked in read(2)
  size_t workers_ = 0;
  bool stopping_ = false;
};

}  // namespace ppmr
