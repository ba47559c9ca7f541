// A network inside one process that misbehaves by a seed: the everyday test of the protocol.
//
// What is written is cut into segments; each suffers by a random generator that belongs to its
// connection and direction, so that a seed means the same decisions on every run (which connection
// comes first is up to the threads). The stream abstraction is broken on purpose: a real TCP
// connection neither drops nor reorders bytes, but our checks must not depend on that.
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

// Probabilities a segment.
struct FaultRates {
  double drop = 0;     // its bytes vanish from the stream
  double delay = 0;    // it, and what follows, comes up to delay_max later
  double cut = 0;      // the connection ends in both directions, what is under way is lost
  double reorder = 0;  // it changes places with the next one
  double corrupt = 0;  // one bit of it flips
};

struct FaultOptions {
  uint64_t seed = 0;
  FaultRates rates;
  uint64_t faults_max = UINT64_MAX;  // after so many the network is perfect
  uint32_t segment_bytes_max = 64 << 10;
  size_t window_bytes = 256 << 10;  // in flight in each direction of a connection; then write waits
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

// Threads: any. Outlives what it made.
class FaultyNetwork {
 public:
  explicit FaultyNetwork(FaultOptions options = {});
  ~FaultyNetwork();

  // The one listener of this network, and a connector to it.
  std::unique_ptr<Listener> listen();
  std::unique_ptr<Connector> connector();

  // While the link is down nothing arrives and nobody connects; nothing is lost either.
  void set_link(bool up);
  // Ends all present connections.
  void cut_all();
  FaultCounts counts() const;

  struct State;  // faulty_transport.cc

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ppmr
