// What a process that uses RDMA reports about itself before a move (the request "check" of
// jobs/rdma_release.h), and whether a device of the target can do what it needs. No I/O.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ppmr {

// What one device must be able to do: a line "device NAME key=value...". The keys are "port",
// "link", "queue-pairs", "completion-queues", "shared-queues", "regions", "domains", "requests",
// "shared-requests", "completions", "pieces", "mtu" and, any number of times, "gid".
struct RdmaNeeds {
  std::string device;
  uint32_t port = 1;
  std::string link_layer;  // "Ethernet", "InfiniBand"; empty: not known
  // How many objects of each kind are needed.
  uint32_t queue_pairs = 0;
  uint32_t completion_queues = 0;
  uint32_t shared_queues = 0;
  uint32_t regions = 0;
  uint32_t domains = 0;
  // The largest numbers that are needed.
  uint32_t requests = 0;         // work requests in one queue
  uint32_t shared_requests = 0;  // work requests in one shared receive queue
  uint32_t completions = 0;      // completions in one completion queue
  uint32_t pieces = 0;           // pieces in one work request
  uint32_t mtu_bytes = 0;        // MTU of a path
  // "ipv4/roce-v2": an address ("ipv4", "link-local", "other") and a type ("roce-v2", "roce-v1",
  // "ib").
  std::set<std::string> gid_kinds;
};

// What one port of a device can do. A limit of 0 is not known.
struct RdmaAbilities : RdmaNeeds {
  bool is_active = false;
};

struct RdmaCheck {
  pid_t pid = 0;
  std::vector<std::string> hindrances;  // why a release would fail now
  bool shows_writes = false;            // after a release, what devices wrote counts as written
  std::vector<RdmaNeeds> needs;         // one for each device
  std::string silence;                  // why there is no answer; empty: there is one
};

// Returns nullopt if the text is no answer to "check". Leaves out lines that it does not know.
std::optional<RdmaCheck> parse_rdma_check(std::string_view text);

// Returns the kind of a GID. `gid`: its text as an IPv6 address. `type`: "RoCE v2", "RoCE v1" or
// "IB".
std::string rdma_gid_kind(const std::string& gid, const std::string& type);

// Adds to `sum` what another process needs of the same device.
void add_rdma_needs(const RdmaNeeds& more, RdmaNeeds& sum);

// Compares the needs with the device that the process would use at the target: the device of the
// same name, else the first active one. Returns what this device lacks, as parts of a sentence:
// "the target's device rxe0 ..."; empty: nothing.
std::vector<std::string> what_rdma_lacks(const RdmaNeeds& needs,
                                         const std::vector<RdmaAbilities>& ports);

// from_json() throws nlohmann::json::exception.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RdmaAbilities, device, port, is_active, link_layer, queue_pairs,
                                   completion_queues, shared_queues, regions, domains, requests,
                                   shared_requests, completions, pieces, mtu_bytes, gid_kinds)

}  // namespace ppmr
