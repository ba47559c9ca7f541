// What to use on another machine in place of what the program had: pure decisions on tables that
// the device gives.
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

// The entry that takes the place of `before`: the same GID and type if it is there (the address has
// moved, too), else the same index if it is of the same kind, else the first of the same kind. The
// kinds: IPv4, link-local, other; each per type. Nothing if there is none.
std::optional<GidEntry> choose_gid(const GidEntry& before, const std::vector<GidEntry>& now);

struct DeviceChoice {
  std::string name;
  bool is_active = false;  // one of its ports
};

// The index of the device to open: the one of the same name, else the first that is active.
std::optional<size_t> choose_device(const std::string& before,
                                    const std::vector<DeviceChoice>& now);

// The address for control connections: the first IPv4 address among the GIDs, else the first other
// address that is not link-local. Nothing if the GIDs are no addresses.
std::optional<std::string> choose_control_ip(const std::vector<Gid>& gids);

}  // namespace ppmr::verbs
