// The source's half of the TCP mover: answers the target's read requests from the pool. Each stream
// has one connection and one thread. Over RDMA the device does this work.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/mover/slot_reader.h"

namespace ppmr {

// Threads: any thread may call stop().
class TcpResponder {
 public:
  struct Options {
    wire::Token session{};
    wire::Token token{};
    uint32_t stream_count = 2;
    // Uses `attempt_max` (stop() may wait that long), `connection_silence_max` and
    // `retry_interval`.
    SessionTimings timings{};
  };
  // Throws std::system_error when a thread cannot be started.
  TcpResponder(Options options, Connector& connector, SlotReader& slots);
  ~TcpResponder();

  // Ends the connections. When the destructor returns, an end_read() has followed each
  // begin_read().
  void stop();

 private:
  void serve_stream(uint32_t stream);
  Status connect_and_serve(uint32_t stream, uint64_t attempt);
  Status serve_connection(Connection& connection);
  void join();

  const Options options_;
  Connector& connector_;
  SlotReader& slots_;

  Mutex mutex_;
  CondVar stop_requested_;
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Connection>> connections_ PPMR_GUARDED_BY(mutex_);  // by stream

  // Declared last: the threads end before the members that they use.
  std::vector<std::thread> threads_;
};

}  // namespace ppmr
