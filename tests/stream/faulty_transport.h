// A network inside one process with seeded faults. Most tests of the protocol run over it.
//
// Writes are cut into segments. Each direction of each connection has a random generator that
// decides the faults of its segments. A seed therefore makes the same decisions for the n-th
// connection in every run; the threads decide which connection is the n-th. A TCP connection does
// not drop or reorder bytes, but this network does: the protocol's checks must not depend on TCP.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Probabilities per segment.
struct FaultRates {
  double drop = 0;     // the bytes of the segment are lost from the stream
  double delay = 0;    // the segment and its successors arrive up to delay_max later
  double cut = 0;      // the connection ends in both directions; segments in flight are lost
  double reorder = 0;  // the segment changes places with its successor
  double corrupt = 0;  // one bit of the segment flips
};

struct FaultOptions {
  uint64_t seed = 0;
  FaultRates rates;
  uint64_t faults_max = UINT64_MAX;  // after this many faults the network is perfect
  uint32_t segment_bytes_max = 64 << 10;
  // Bytes in flight per direction of a connection; when full, writes block.
  size_t window_bytes = 256 << 10;
  std::chrono::milliseconds delay_max{20};
};

struct FaultCounts {
  uint64_t connections = 0;
  uint64_t dropped = 0;
  uint64_t delayed = 0;
  uint64_t cut = 0;
  uint64_t reordered = 0;
  uint64_t corrupted = 0;
  uint64_t outages = 0;
  uint64_t faults() const { return dropped + delayed + cut + reordered + corrupted + outages; }
  FaultCounts& operator+=(const FaultCounts& other);
  std::string text() const;
};

// Threads: any. The network must live longer than its listener, connectors and connections.
class FaultyNetwork {
 public:
  explicit FaultyNetwork(FaultOptions options = {});
  ~FaultyNetwork();

  // The one listener of this network, and a connector to it.
  std::unique_ptr<Listener> listen();
  std::unique_ptr<Connector> connector();

  // While the link is down no byte arrives and no connection opens, but no byte is lost.
  void set_link(bool up);
  // Ends all open connections.
  void cut_all();
  FaultCounts counts() const;

  struct State;  // defined in faulty_transport.cc

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ppmr
