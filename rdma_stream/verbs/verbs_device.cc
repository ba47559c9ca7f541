#include "rdma_stream/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <net/if.h>

#include <algorithm>
#include <bit>

#include "rdma_stream/verbs/verbs_resources.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

struct InterfaceAddress {
  std::string device;
  uint32_t port = 0;
  RailAddress address;
};

uint8_t prefix_bits(const ifaddrs& entry) {
  unsigned bits = 0;
  if (entry.ifa_netmask == nullptr) return 128;
  const bool v4 = entry.ifa_addr->sa_family == AF_INET;
  const RailAddress mask = rail_address(entry.ifa_netmask);
  for (size_t i = v4 ? 12 : 0; i < mask.ip.size(); ++i) {
    bits += static_cast<unsigned>(std::popcount(mask.ip[i]));
  }
  return static_cast<uint8_t>(v4 ? 96 + bits : bits);
}

// Returns the addresses of this machine that belong to RDMA devices. The function binds an RDMA
// identifier to each address: the connection manager then finds the device, for every kind of
// device. `objection` receives the reason if the connection manager is not available.
std::vector<InterfaceAddress> rdma_addresses(std::string& objection) {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr)) {
      continue;  // a link-local address needs a scope id, which RailAddress does not have
    }
    RailAddress address = rail_address(entry->ifa_addr);
    address.port = 0;
    const auto anchor = bind_anchor(address);
    if (!anchor) {
      if (anchor.error().message.find("rdma_ucm") != std::string::npos) {
        objection = anchor.error().message;
      }
      continue;
    }
    address.prefix_bits = prefix_bits(*entry);
    found.push_back({device_name(anchor->context()), anchor->id->port_num, address});
  }
  ::freeifaddrs(list);
  std::stable_partition(found.begin(), found.end(),
                        [](const auto& entry) { return entry.address.is_ipv4(); });
  return found;
}

const char* state_text(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising (no subnet manager?)";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    default:
      return "unknown";
  }
}

const char* link_layer_text(uint8_t layer) {
  if (layer == IBV_LINK_LAYER_ETHERNET) return "Ethernet";
  return layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "unspecified";
}

const char* transport_text(ibv_transport_type transport) {
  switch (transport) {
    case IBV_TRANSPORT_IB:
      return "InfiniBand";
    case IBV_TRANSPORT_IWARP:
      return "iWARP";
    default:
      return "other";
  }
}

uint32_t mtu_bytes(ibv_mtu mtu) { return mtu >= IBV_MTU_256 ? 128u << mtu : 0; }

std::string guid_text(__be64 guid) {
  char text[20];
  const auto value = be64toh(guid);
  std::snprintf(text, sizeof text, "%04x:%04x:%04x:%04x", static_cast<unsigned>(value >> 48),
                static_cast<unsigned>(value >> 32 & 0xffff),
                static_cast<unsigned>(value >> 16 & 0xffff), static_cast<unsigned>(value & 0xffff));
  return text;
}

std::vector<RdmaPort::Gid> gids_of(ibv_context* context, uint32_t port) {
  std::vector<ibv_gid_entry> entries(256);
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  std::vector<RdmaPort::Gid> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port) continue;
    RdmaPort::Gid gid;
    gid.index = entry.gid_index;
    char text[INET6_ADDRSTRLEN] = "?";
    ::inet_ntop(AF_INET6, entry.gid.raw, text, sizeof text);
    gid.gid = text;
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
                                                        : "IB";
    char name[IF_NAMESIZE] = "";
    if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr) {
      gid.interface = name;
    }
    gids.push_back(std::move(gid));
  }
  return gids;
}

}  // namespace

std::string objection_to(const RdmaPort& port, const std::string& no_connections) {
  if (port.is_iwarp) {
    return "it is iWARP, where each source could write into the images of the others";
  }
  if (port.state != "active") return "the port is " + port.state;
  if (!no_connections.empty()) return no_connections;
  if (port.reads_served_max == 0 || port.reads_started_max == 0)
    return "it does not support RDMA READ";
  if (port.addresses.empty()) {
    return "its network interface has no IP address (ppmr connects by IP address; a link-local one "
           "is not enough)";
  }
  return "";
}

std::vector<RdmaPort> find_rdma_ports() {
  std::vector<RdmaPort> ports;
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr) return ports;
  std::string no_connections;
  std::vector<InterfaceAddress> addresses;
  if (count > 0) addresses = rdma_addresses(no_connections);
  for (int i = 0; i < count; ++i) {
    RdmaPort device;
    device.device = ibv_get_device_name(devices[i]);
    device.is_iwarp = devices[i]->transport_type == IBV_TRANSPORT_IWARP;
    device.transport = transport_text(devices[i]->transport_type);
    device.node_guid = guid_text(ibv_get_device_guid(devices[i]));
    ibv_context* const context = ibv_open_device(devices[i]);
    if (context == nullptr) {
      device.why_not = std::string("cannot open it: ") + std::strerror(errno);
      ports.push_back(device);
      continue;
    }
    ibv_device_attr attributes{};
    if (const int error = ibv_query_device(context, &attributes); error != 0) {
      device.why_not = std::string("cannot query its limits: ") + std::strerror(error);
      ports.push_back(device);
      ibv_close_device(context);
      continue;
    }
    device.firmware = attributes.fw_ver;
    device.queue_pairs_max = static_cast<uint32_t>(attributes.max_qp);
    device.completion_queues_max = static_cast<uint32_t>(attributes.max_cq);
    device.shared_queues_max = static_cast<uint32_t>(attributes.max_srq);
    device.domains_max = static_cast<uint32_t>(attributes.max_pd);
    device.requests_max = static_cast<uint32_t>(attributes.max_qp_wr);
    device.shared_requests_max = static_cast<uint32_t>(attributes.max_srq_wr);
    device.completions_max = static_cast<uint32_t>(attributes.max_cqe);
    device.pieces_max = static_cast<uint32_t>(attributes.max_sge);
    device.read_pieces_max = static_cast<uint32_t>(std::max(attributes.max_sge_rd, 1));
    device.reads_served_max = static_cast<uint32_t>(attributes.max_qp_rd_atom);
    device.reads_started_max = static_cast<uint32_t>(attributes.max_qp_init_rd_atom);
    device.regions_max = static_cast<uint32_t>(attributes.max_mr);
    device.region_max_bytes = attributes.max_mr_size;
    for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      RdmaPort port = device;
      port.number = number;
      ibv_port_attr state{};
      if (ibv_query_port(context, number, &state) != 0) continue;
      port.link_layer = link_layer_text(state.link_layer);
      port.state = state_text(state.state);
      port.mtu_bytes = mtu_bytes(state.active_mtu);
      port.mtu_max_bytes = mtu_bytes(state.max_mtu);
      port.message_max_bytes = state.max_msg_sz;
      port.gids = gids_of(context, number);
      for (const auto& entry : addresses) {
        if (entry.device == port.device && entry.port == number) {
          port.addresses.push_back(entry.address);
        }
      }
      port.why_not = objection_to(port, no_connections);
      port.usable = port.why_not.empty();
      ports.push_back(std::move(port));
    }
    ibv_close_device(context);
  }
  ibv_free_device_list(devices);
  return ports;
}

}  // namespace ppmr
