// RDMA inside one process that misbehaves on request: a source's and a target's fabric, joined by a
// link. Reads move bytes straight from the one's registered memory to the other's, with the checks
// of a device: keys, rights, bounds, domains. Faults come by a seed, or at a certain read.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

enum class ReadFault {
  kNone,
  kError,       // the queue pair moves to the error state; this read and all behind it fail
  kSilence,     // neither this one nor those behind it ever complete
  kDuplicate,   // completes twice
  kStranger,    // a completion of a read that nobody posted comes with it
  kLate,        // a completion of an earlier read comes with it again
  kCorrupt,     // a byte is wrong
  kDisconnect,  // the connection ends
};

struct FaultyVerbsOptions {
  uint64_t seed = 0;
  double fault_rate = 0;  // of reads; which fault is chosen by the seed
  uint64_t faults_max = UINT64_MAX;
  uint32_t rails = 1;  // of each side, each in a network of its own
  ReadLimits limits{64, 16, 1 << 20};
  uint64_t registered_max_bytes = UINT64_MAX;  // of each side; beyond it: ENOMEM
};

// Threads: any. Outlives what it made.
class FaultyVerbs {
 public:
  explicit FaultyVerbs(FaultyVerbsOptions options = {});
  ~FaultyVerbs();

  Fabric& source();
  Fabric& target();

  // While the link is down no read completes and nobody connects.
  void set_link(bool up);
  // Whatever `rail` of that side was made of ends, and its user hears of it.
  void remove_source_rail(size_t rail);
  void remove_target_rail(size_t rail);
  // The next reads suffer from these, in their order, whatever the rate.
  void plan(std::vector<ReadFault> faults);
  // From now on the source's regions have other keys than it tells.
  void forget_source_keys();

  struct Counts {
    uint64_t connections = 0;  // made
    uint64_t refused = 0;
    uint64_t reads = 0;
    uint64_t faults = 0;
    uint64_t bytes_copied = 0;
    // There now.
    uint64_t live_queues = 0;
    uint64_t live_regions = 0;
    uint64_t live_domains = 0;
    uint64_t live_bytes = 0;
    uint64_t regions_made = 0;
  };
  Counts counts() const;
  // Connects like a stranger who knows the address; the refusal.
  Error knock(std::span<const std::byte> private_data);

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ppmr
