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
  double fault_rate = 0;  // probability of a fault per read; the seed chooses the fault
  uint64_t faults_max = UINT64_MAX;
  uint32_t rails = 1;  // number of rails of each side, each in its own network
  ReadLimits limits{64, 16, 1 << 20};
  // Limit for the registered bytes of each side; beyond the limit: ENOMEM.
  uint64_t registered_max_bytes = UINT64_MAX;
};

// Threads: any. The object must live longer than the objects made from it.
class FaultyVerbs {
 public:
  explicit FaultyVerbs(FaultyVerbsOptions options = {});
  ~FaultyVerbs();

  Fabric& source();
  Fabric& target();

  // While the link is down no read completes and no connection opens.
  void set_link(bool up);
  // Ends all objects made from that rail and reports the loss to its user.
  void remove_source_rail(size_t rail);
  void remove_target_rail(size_t rail);
  // Returns the removed devices, so they can be opened again.
  void return_rails();
  // The next reads have these faults, in this order, whatever the rate is.
  void plan(std::vector<ReadFault> faults);
  // From now on the source offers wrong keys for its regions.
  void forget_source_keys();

  struct Counts {
    uint64_t connections = 0;                   // number of opened connections
    std::chrono::milliseconds read_timeout{0};  // read timeout of the latest connection
    uint64_t refused = 0;
    uint64_t reads = 0;
    uint64_t faults = 0;
    uint64_t bytes_copied = 0;
    // Numbers of objects that exist now.
    uint64_t live_queues = 0;
    uint64_t live_regions = 0;
    uint64_t live_domains = 0;
    uint64_t live_bytes = 0;
    uint64_t regions_made = 0;
  };
  Counts counts() const;
  // Connects from the target's first rail to the source's first rail with this private data, and
  // returns the refusal. Returns no error if the source admits the connection.
  Error refusal(std::span<const std::byte> private_data);
  // Returns the private data of the latest connection, as the network transferred it.
  std::vector<std::byte> latest_private_data() const;
  RailAddress source_address() const;
  RailAddress target_address() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ppmr
