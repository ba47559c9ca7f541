// The target's half of the TCP mover. Each stream has one connection and one thread, and several
// read requests in flight. The thread receives payload directly to its final place.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/mover/mover.h"

namespace ppmr {

// Threads: any thread may call attach() and stop(). The queue must be closed before the puller is
// destroyed, because its threads block in PullQueue::take().
class TcpPuller final : public Puller {
 public:
  struct Options {
    uint32_t stream_count = 2;
    SessionTimings timings{};  // uses `read_answer_max`
  };
  // Throws std::system_error when a thread cannot be started.
  TcpPuller(Options options, PullQueue& queue);
  ~TcpPuller() override;

  // Takes a connection for `stream`, which replaces the previous connection of that stream. Errors:
  // EPROTO for a stream that the session does not have, ECANCELED after stop().
  Status attach(uint32_t stream, std::shared_ptr<Connection> connection);
  void pulls_queued() override {}  // its threads wait in take()
  void stop() override;
  void finish() override;
  uint32_t stream_count() const { return options_.stream_count; }

 private:
  struct Stream {
    std::shared_ptr<Connection> attached;  // the stream's thread has not taken it yet
    std::shared_ptr<Connection> current;
  };
  class Window;

  void run_stream(uint32_t stream);
  void pull_over(Connection& connection);
  Status exchange(Connection& connection, Window& window);

  const Options options_;
  PullQueue& queue_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::vector<Stream> streams_ PPMR_GUARDED_BY(mutex_);

  // Declared last: the threads end before the members that they use.
  std::vector<std::thread> threads_;
};

}  // namespace ppmr
