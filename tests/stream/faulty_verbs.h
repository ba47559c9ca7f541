// RDMA with injected faults, inside one process: the fabrics of a source and a target, joined by a
// link. A read copies bytes from the source's registered memory to the target's, with the checks of
// a device: keys, rights, bounds, domains. A seed chooses the faults, or a test plans them for the
// next reads.
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
  kError,       // the queue pair enters the error state: this read and all later ones fail
  kNoAnswer,    // this read and all later ones never complete
  kDuplicate,   // the read completes twice
  kUnknown,     // a completion of an unknown read comes with it
  kLate,        // the completion of an earlier read comes with it again
  kCorrupt,     // a byte is wrong
  kDisconnect,  // the connection ends
};

struct FaultyVerbsOptions {
  uint64_t seed = 0;
  double fault_rate = 0;  // of reads; the seed chooses the fault
  uint64_t faults_max = UINT64_MAX;
  uint32_t rails = 1;  // of each side, each in a network of its own
  ReadLimits limits{64, 16, 1 << 20};
  uint64_t registered_max_bytes = UINT64_MAX;  // of each side; beyond it: ENOMEM
};

// Threads: any. It outlives the objects made from it.
class FaultyVerbs {
 public:
  explicit FaultyVerbs(FaultyVerbsOptions options = {});
  ~FaultyVerbs();

  Fabric& source();
  Fabric& target();

  // While the link is down no read completes and no connection opens.
  void set_link(bool up);
  // Ends everything made from that rail and reports the loss to its user.
  void remove_source_rail(size_t rail);
  void remove_target_rail(size_t rail);
  // The removed devices are back: they can be opened again.
  void return_rails();
  // The next reads have these faults, in this order, regardless of the rate.
  void plan(std::vector<ReadFault> faults);
  // From now on the source offers wrong keys for its regions.
  void forget_source_keys();

  struct Counts {
    uint64_t connections = 0;                   // opened
    std::chrono::milliseconds read_timeout{0};  // of the latest connection
    uint64_t refused = 0;
    uint64_t reads = 0;
    uint64_t faults = 0;
    uint64_t bytes_copied = 0;
    // Existing now.
    uint64_t live_queues = 0;
    uint64_t live_regions = 0;
    uint64_t live_domains = 0;
    uint64_t live_bytes = 0;
    uint64_t regions_made = 0;
  };
  Counts counts() const;
  // Connects to the source's first rail with this private data, from the target's first rail, and
  // returns the refusal; no error if it is admitted.
  Error refusal(std::span<const std::byte> private_data);
  // The private data of the latest connection, as the network has seen it.
  std::vector<std::byte> latest_private_data() const;
  RailAddress source_address() const;
  RailAddress target_address() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ppmr
