// Chooses the devices and addresses of another machine that replace those that the program had.
// Pure: decides on tables that the caller has read from the device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs_library/protocol/end_id.h"

namespace ppmr::verbs {

struct GidEntry {
  uint32_t index = 0;
  Gid gid = {};
  int type = 0;  // enum ibv_gid_type_sysfs or _exp; only compared
};

// Returns the entry that takes the place of `before`. Prefers an entry with the same GID and type
// (the address has moved, too), then the entry with the same index if it is of the same kind, then
// the first entry of the same kind. Two entries are of the same kind if they have the same type,
// and both GIDs are IPv4, both link-local, or both other addresses. nullopt: there is none.
std::optional<GidEntry> choose_gid(const GidEntry& before, const std::vector<GidEntry>& now);

struct DeviceChoice {
  std::string name;
  bool is_active = false;  // whether it has an active port
};

// Returns the index of the device to open: the device with the same name, or else the first active
// device. nullopt: there is none.
std::optional<size_t> choose_device(const std::string& before,
                                    const std::vector<DeviceChoice>& now);

// Returns the address for control connections: the first IPv4 address among the GIDs, or else the
// first other address that is not link-local. nullopt: no GID is such an address.
std::optional<std::string> choose_control_ip(const std::vector<Gid>& gids);

}  // namespace ppmr::verbs
