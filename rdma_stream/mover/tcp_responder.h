// The source's half of the TCP mover: answers the target's read requests from the pool, one
// connection and one thread a stream. What an RDMA device does by itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/mover/slot_reader.h"

namespace ppmr {

// Threads: stop() by any; the rest is its own.
class TcpResponder {
 public:
  struct Options {
    wire::Token session{};
    wire::Token token{};
    uint32_t stream_count = 2;
    // Uses `attempt_max` (stop() may wait for it), `connection_silence_max`, `retry_interval`.
    SessionTimings timings{};
  };
  TcpResponder(Options options, Connector& connector, SlotReader& slots);
  ~TcpResponder();

  // Ends the connections; every begin_read() has had its end_read() when the destructor returns.
  void stop();

 private:
  void serve_stream(uint32_t stream);
  Status serve_connection(Connection& connection);

  const Options options_;
  Connector& connector_;
  SlotReader& slots_;

  std::mutex mutex_;
  std::condition_variable stop_requested_;
  bool stopping_ = false;                                 // guarded by mutex_
  std::vector<std::shared_ptr<Connection>> connections_;  // by stream; guarded by mutex_

  std::vector<std::thread> threads_;  // last: ends before what it uses
};

}  // namespace ppmr
