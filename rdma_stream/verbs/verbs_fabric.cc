#include "rdma_stream/verbs/verbs_fabric.h"

#include <algorithm>

#include "rdma_stream/verbs/verbs_device.h"
#include "rdma_stream/verbs/verbs_rail.h"
#include "rdma_stream/verbs/verbs_resources.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

std::string names_of(const std::vector<RdmaPort>& ports) {
  std::string names;
  for (const RdmaPort& port : ports) {
    if (names.find(port.device) == std::string::npos) {
      names += (names.empty() ? "" : ", ") + port.device;
    }
  }
  return names;
}

// Returns whether `name` selects the port: "mlx5_0" selects all ports of a device, "mlx5_0:2"
// selects one port.
bool is_named(const RdmaPort& port, const std::string& name) {
  return name == port.device || name == port.device + ":" + std::to_string(port.number);
}

std::string name_of(const RdmaPort& port) {
  return port.device + ":" + std::to_string(port.number);
}

class VerbsFabric final : public Fabric {
 public:
  explicit VerbsFabric(uint64_t pinned_bytes_max) : pinned_bytes_max_(pinned_bytes_max) {}

  Result<std::vector<std::unique_ptr<Rail>>> open(const RailChoice& choice,
                                                  RailRole role) override {
    auto ports = choose(choice);
    if (!ports) return failure(ports.error());
    if (std::string objection = memlock_objection(pinned_bytes_max_); !objection.empty()) {
      return failure(ENOMEM, objection);
    }
    std::vector<std::unique_ptr<Rail>> rails;
    Error last{ENODEV, ""};
    for (const RdmaPort& port : *ports) {
      auto address = address_of(port, choice.gid_index);
      if (!address) return failure(address.error());
      address->port = choice.port;
      auto rail = VerbsRail::open(port, *address, role);
      if (rail) {
        rails.push_back(std::move(*rail));
      } else if (!choice.devices.empty() || choice.port != 0) {
        return failure(rail.error());
      } else {
        spdlog::warn("{}", rail.error().message);
        last = rail.error();
      }
    }
    if (rails.empty()) return failure(last);
    return rails;
  }

 private:
  static Result<std::vector<RdmaPort>> choose(const RailChoice& choice) {
    const auto all = find_rdma_ports();
    if (all.empty()) return failure(ENODEV, "this machine has no RDMA device");
    std::vector<RdmaPort> chosen;
    for (const std::string& name : choice.devices) {
      const size_t before = chosen.size();
      std::string why_not = "not found; this machine has: " + names_of(all);
      for (const RdmaPort& port : all) {
        if (!is_named(port, name)) continue;
        why_not = port.why_not;
        if (port.usable) chosen.push_back(port);
      }
      if (chosen.size() == before) {
        return failure(ENODEV, "RDMA device '" + name + "': " + why_not);
      }
    }
    if (choice.devices.empty()) {
      std::string why_not;
      for (const RdmaPort& port : all) {
        if (port.usable) {
          chosen.push_back(port);
        } else {
          why_not += (why_not.empty() ? "" : "; ") + name_of(port) + ": " + port.why_not;
        }
      }
      if (chosen.empty()) return failure(ENODEV, "no RDMA device is usable: " + why_not);
    }
    if (chosen.size() > wire::kRailsMax) chosen.resize(wire::kRailsMax);
    return chosen;
  }

  // The connection manager derives the GID from the IP address, so a choice of the GID is a choice
  // of the address.
  static Result<RailAddress> address_of(const RdmaPort& port, std::optional<uint32_t> gid_index) {
    if (!gid_index) return port.addresses.front();
    for (const RdmaPort::Gid& gid : port.gids) {
      if (gid.index != *gid_index) continue;
      for (const RailAddress& address : port.addresses) {
        RailAddress plain = address;
        const std::string as_gid =
            address.is_ipv4() ? "::ffff:" + address.ip_text() : address.ip_text();
        if (as_gid == gid.gid) return plain;
      }
      return failure(EINVAL, "--gid-index " + std::to_string(*gid_index) + ": GID " + gid.gid +
                                 " of " + name_of(port) +
                                 " is not an IP address of its interface (see `ppmr devices`)");
    }
    return failure(EINVAL, "--gid-index " + std::to_string(*gid_index) + ": " + name_of(port) +
                               " has no such GID (see `ppmr devices`)");
  }

  const uint64_t pinned_bytes_max_;
};

}  // namespace

std::unique_ptr<Fabric> make_verbs_fabric(uint64_t pinned_bytes_max) {
  // ppmr forks, for example to start fusermount3, and registered memory must survive this.
  // ibv_fork_init() costs nothing from Linux 5.12 on. If it fails, copy-on-write after a fork may
  // give ppmr other pages than those that the device uses.
  if (const int error = ibv_fork_init(); error != 0) {
    spdlog::warn("ibv_fork_init failed: {}; programs that ppmr starts may corrupt RDMA transfers",
                 std::strerror(error));
  }
  return std::make_unique<VerbsFabric>(pinned_bytes_max);
}

}  // namespace ppmr
