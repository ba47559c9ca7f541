// The target's half of the TCP mover: one connection and one thread a stream, several reads under
// way on each. Payload is received straight to its final place.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/mover/mover.h"

namespace ppmr {

// Threads: attach() and stop() by any; the rest is its own. The queue must be closed before the
// puller is destroyed.
class TcpPuller {
 public:
  struct Options {
    uint32_t stream_count = 2;
    SessionTimings timings{};  // uses `read_answer_max`
  };
  TcpPuller(Options options, PullQueue& queue);
  ~TcpPuller();

  // A connection for `stream` has come; it replaces one that is there.
  Status attach(uint32_t stream, std::shared_ptr<Connection> connection);
  void stop();
  // The same, and waits until no thread uses the queue any more.
  void finish();
  uint32_t stream_count() const { return options_.stream_count; }

 private:
  struct Stream {
    std::shared_ptr<Connection> attached;  // not yet taken by the thread
    std::shared_ptr<Connection> current;
  };
  class Window;

  void run_stream(uint32_t stream);
  void pull_over(Connection& connection);

  const Options options_;
  PullQueue& queue_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;        // guarded by mutex_
  std::vector<Stream> streams_;  // guarded by mutex_

  std::vector<std::thread> threads_;  // last: ends before what it uses
};

}  // namespace ppmr
