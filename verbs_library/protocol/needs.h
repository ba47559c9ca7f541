// What the device of another machine must be able to do, so that the library can make all objects
// again there. The answer to ppmr's request "check" has it as a line (jobs/rdma_release.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "verbs_library/protocol/choices.h"

namespace ppmr::verbs {

struct DeviceNeeds {
  std::string device;
  uint32_t port = 1;
  std::string link_layer;  // "Ethernet", "InfiniBand"; empty: not known
  // The number of objects of each kind.
  uint32_t queue_pairs = 0;
  uint32_t completion_queues = 0;
  uint32_t shared_queues = 0;
  uint32_t regions = 0;
  uint32_t domains = 0;
  // The largest size of each kind.
  uint32_t requests = 0;         // of one queue
  uint32_t shared_requests = 0;  // of one shared receive queue
  uint32_t completions = 0;      // of one completion queue
  uint32_t pieces = 0;           // of one request
  uint32_t inline_bytes = 0;     // of one request
  uint32_t mtu_bytes = 0;        // of a path; 0: nothing is connected
  std::set<std::string> gid_kinds;
};

// Returns the kind of a GID, see choose_gid(): for example "ipv4/roce-v2", "link-local/ib" or
// "other/roce-v1".
std::string gid_kind(const GidEntry& entry);

// Adds the needs of another context of the same device to `sum`.
void add(const DeviceNeeds& more, DeviceNeeds& sum);

// Returns the needs as a line, with a line break at its end.
std::string format(const DeviceNeeds& needs);

}  // namespace ppmr::verbs
