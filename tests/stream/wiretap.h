// An attacker in the network path: records every byte, and may change the payload on the data
// connections.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Threads: any. The object must live longer than the connectors made from it.
class Wiretap {
 public:
  // Changes a payload in transit from the source to the target. Called without a lock, by several
  // threads.
  using Tamper = std::function<void(std::span<std::byte> payload)>;

  std::unique_ptr<Connector> tap(std::unique_ptr<Connector> connector);
  void set_tamper(Tamper tamper);
  // Returns whether these bytes were sent over the network, in either direction, on one connection.
  bool saw(std::span<const std::byte> bytes) const;
  size_t recorded_bytes() const;

  struct State;

 private:
  const std::shared_ptr<State> state_ = make_state();
  static std::shared_ptr<State> make_state();
};

}  // namespace ppmr
