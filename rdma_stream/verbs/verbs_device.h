// The RDMA devices of this machine, and the reasons why ppmr cannot use some of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// One port of a device. A device that cannot be opened or queried has one RdmaPort, with number 0.
struct RdmaPort {
  struct Gid {
    uint32_t index = 0;
    std::string gid;        // written as an IPv6 address
    std::string type;       // "IB", "RoCE v1", "RoCE v2"
    std::string interface;  // network interface, such as "eth0"; empty if there is none
  };
  std::string device;
  uint32_t number = 0;
  bool is_iwarp = false;
  std::string transport;   // "InfiniBand" (RoCE too), "iWARP", ...
  std::string link_layer;  // "InfiniBand", "Ethernet"
  std::string state;       // "active", "down", ...
  std::string node_guid;
  std::string firmware;
  uint32_t mtu_bytes = 0;      // the MTU in use
  uint32_t mtu_max_bytes = 0;  // the MTU that the port supports
  uint32_t message_max_bytes = 0;
  uint32_t queue_pairs_max = 0;
  uint32_t completion_queues_max = 0;
  uint32_t shared_queues_max = 0;
  uint32_t domains_max = 0;
  uint32_t requests_max = 0;         // of one queue
  uint32_t shared_requests_max = 0;  // of one shared receive queue
  uint32_t completions_max = 0;      // of one completion queue
  uint32_t pieces_max = 0;           // of one request
  uint32_t read_pieces_max = 0;  // max_sge_rd
  // Limits for the RDMA reads in flight on one queue pair.
  uint32_t reads_served_max = 0;   // reads that the peer posts (max_qp_rd_atom)
  uint32_t reads_started_max = 0;  // reads that this machine posts (max_qp_init_rd_atom)
  uint32_t regions_max = 0;
  uint64_t region_max_bytes = 0;
  std::vector<Gid> gids;
  std::vector<RailAddress> addresses;  // IPv4 first
  bool usable = false;
  std::string why_not;
};

// Returns why ppmr cannot use the port; empty when it can. iWARP is refused: with iWARP the peer
// answers a read by a write, so all sources of a target could write to the target's memory.
// `no_connections` is the reason why this machine cannot make RDMA connections; empty when it can.
std::string objection_to(const RdmaPort& port, const std::string& no_connections);

// Returns the ports in the system's order of devices; empty if there are no devices.
std::vector<RdmaPort> find_rdma_ports();

}  // namespace ppmr
