#include "verbs_library/protocol/choices.h"

#include <algorithm>

namespace ppmr::verbs {
namespace {

bool are_same_kind(const GidEntry& one, const GidEntry& other) {
  return one.type == other.type && is_mapped_ipv4(one.gid) == is_mapped_ipv4(other.gid) &&
         is_link_local(one.gid) == is_link_local(other.gid);
}

bool is_zero(const Gid& gid) { return gid == Gid{}; }

}  // namespace

std::optional<GidEntry> choose_gid(const GidEntry& before, const std::vector<GidEntry>& now) {
  const GidEntry* best = nullptr;
  int best_rank = 0;
  for (const GidEntry& entry : now) {
    if (is_zero(entry.gid) || !are_same_kind(entry, before)) continue;
    const int rank = entry.gid == before.gid ? 3 : entry.index == before.index ? 2 : 1;
    if (rank > best_rank) {
      best_rank = rank;
      best = &entry;
    }
  }
  return best ? std::optional(*best) : std::nullopt;
}

std::optional<size_t> choose_device(const std::string& before,
                                    const std::vector<DeviceChoice>& now) {
  const auto same = std::find_if(now.begin(), now.end(),
                                 [&](const DeviceChoice& one) { return one.name == before; });
  if (same != now.end()) return same - now.begin();
  const auto active =
      std::find_if(now.begin(), now.end(), [](const DeviceChoice& one) { return one.is_active; });
  if (active != now.end()) return active - now.begin();
  return std::nullopt;
}

std::optional<std::string> choose_control_ip(const std::vector<Gid>& gids) {
  const auto four = std::find_if(gids.begin(), gids.end(), is_mapped_ipv4);
  if (four != gids.end()) return address_of(*four);
  // Global unicast addresses are 2000::/3, private ones fc00::/7. InfiniBand's default GIDs are
  // link-local.
  const auto six = std::find_if(gids.begin(), gids.end(), [](const Gid& gid) {
    return (gid[0] & 0xe0) == 0x20 || (gid[0] & 0xfe) == 0xfc;
  });
  if (six != gids.end()) return address_of(*six);
  return std::nullopt;
}

}  // namespace ppmr::verbs
