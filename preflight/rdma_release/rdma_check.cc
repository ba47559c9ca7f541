#include "preflight/rdma_release/rdma_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

namespace ppmr {
namespace {

constexpr std::string_view kFirstLine = "ppmr-rdma-check 1";
constexpr size_t kItemsMax = 64;  // for each kind, because a process may send anything

struct Limit {
  const char* key;
  uint32_t RdmaNeeds::*value;
  const char* noun;  // "the target's device rxe0 can have at most 5 NOUN, and 7 are needed"
};
constexpr Limit kCounts[] = {
    {"queue-pairs", &RdmaNeeds::queue_pairs, "queue pairs"},
    {"completion-queues", &RdmaNeeds::completion_queues, "completion queues"},
    {"shared-queues", &RdmaNeeds::shared_queues, "shared receive queues"},
    {"regions", &RdmaNeeds::regions, "memory regions"},
    {"domains", &RdmaNeeds::domains, "protection domains"},
};
constexpr Limit kSizes[] = {
    {"requests", &RdmaNeeds::requests, "work requests in a queue"},
    {"shared-requests", &RdmaNeeds::shared_requests, "work requests in a shared receive queue"},
    {"completions", &RdmaNeeds::completions, "completions in a queue"},
    {"pieces", &RdmaNeeds::pieces, "pieces in a work request"},
    {"mtu", &RdmaNeeds::mtu_bytes, "bytes in a packet (its MTU)"},
};

bool is_number(std::string_view text, uint32_t& value) {
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

void read_value(std::string_view key, std::string_view value, RdmaNeeds& needs) {
  if (key == "link") needs.link_layer = value;
  if (key == "gid" && needs.gid_kinds.size() < kItemsMax) needs.gid_kinds.emplace(value);
  uint32_t number = 0;
  if (!is_number(value, number)) return;
  if (key == "port") needs.port = number;
  for (const Limit& limit : kCounts) {
    if (key == limit.key) needs.*limit.value = number;
  }
  for (const Limit& limit : kSizes) {
    if (key == limit.key) needs.*limit.value = number;
  }
}

RdmaNeeds parse_needs(const std::string& line) {
  RdmaNeeds needs;
  std::istringstream words(line);
  words >> needs.device;
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    if (at == std::string::npos) continue;
    read_value(std::string_view(word).substr(0, at), std::string_view(word).substr(at + 1), needs);
  }
  return needs;
}

// Older libraries do not distinguish the types of GIDs on Ethernet, and report "ib".
bool has_gid_of_kind(const std::string& kind, const RdmaAbilities& port) {
  if (port.gid_kinds.contains(kind)) return true;
  if (port.link_layer != "Ethernet" || !kind.ends_with("/ib")) return false;
  const std::string address = kind.substr(0, kind.find('/') + 1);
  return std::any_of(port.gid_kinds.begin(), port.gid_kinds.end(),
                     [&](const std::string& one) { return one.starts_with(address); });
}

const RdmaAbilities* choose_port(const RdmaNeeds& needs, const std::vector<RdmaAbilities>& ports) {
  const auto same = [&](const RdmaAbilities& one) { return one.device == needs.device; };
  std::string device = needs.device;
  if (std::none_of(ports.begin(), ports.end(), same)) {
    const auto active = std::find_if(ports.begin(), ports.end(), [](const RdmaAbilities& one) {
      return one.is_active && one.port == 1;
    });
    if (active == ports.end()) return nullptr;
    device = active->device;
  }
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const RdmaAbilities& one) {
    return one.device == device && one.port == needs.port;
  });
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace

std::optional<RdmaCheck> parse_rdma_check(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return std::nullopt;
  RdmaCheck check;
  while (std::getline(lines, line)) {
    constexpr std::string_view kHindrance = "hindrance ", kDevice = "device ";
    if (line == "shows-writes") check.shows_writes = true;
    if (line.starts_with(kHindrance) && check.hindrances.size() < kItemsMax)
      check.hindrances.push_back(line.substr(kHindrance.size()));
    if (line.starts_with(kDevice) && check.needs.size() < kItemsMax)
      check.needs.push_back(parse_needs(line.substr(kDevice.size())));
  }
  return check;
}

std::string rdma_gid_kind(const std::string& gid, const std::string& type) {
  const char* const address = gid.starts_with("::ffff:") ? "ipv4"
                              : gid.starts_with("fe80:") ? "link-local"
                                                         : "other";
  const char* const kind = type == "RoCE v2" ? "roce-v2" : type == "RoCE v1" ? "roce-v1" : "ib";
  return fmt::format("{}/{}", address, kind);
}

void add_rdma_needs(const RdmaNeeds& more, RdmaNeeds& sum) {
  for (const Limit& limit : kCounts) {
    const uint32_t room = UINT32_MAX - sum.*limit.value;
    sum.*limit.value += std::min(more.*limit.value, room);
  }
  for (const Limit& limit : kSizes)
    sum.*limit.value = std::max(sum.*limit.value, more.*limit.value);
  sum.gid_kinds.insert(more.gid_kinds.begin(), more.gid_kinds.end());
  if (sum.link_layer.empty()) sum.link_layer = more.link_layer;
  sum.device = more.device;
  sum.port = more.port;
}

std::vector<std::string> what_rdma_lacks(const RdmaNeeds& needs,
                                         const std::vector<RdmaAbilities>& ports) {
  const RdmaAbilities* const port = choose_port(needs, ports);
  if (!port && ports.empty()) return {"the target has no RDMA device"};
  if (!port) return {fmt::format("the target has no active device with a port {}", needs.port)};
  const std::string device = fmt::format("the target's device {}", port->device);
  if (!port->is_active) return {fmt::format("port {} of {} is not active", needs.port, device)};
  std::vector<std::string> lacks;
  if (!needs.link_layer.empty() && needs.link_layer != port->link_layer)
    lacks.push_back(
        fmt::format("{} is on {}, not on {}", device, port->link_layer, needs.link_layer));
  const auto compare = [&](const Limit& limit) {
    const uint32_t can = (*port).*limit.value;
    if (can == 0 || needs.*limit.value <= can) return;
    lacks.push_back(fmt::format("{} can have at most {} {}, and {} are needed", device, can,
                                limit.noun, needs.*limit.value));
  };
  for (const Limit& limit : kCounts) compare(limit);
  for (const Limit& limit : kSizes) compare(limit);
  for (const std::string& kind : needs.gid_kinds) {
    if (has_gid_of_kind(kind, *port)) continue;
    lacks.push_back(fmt::format(
        "{} has no GID of the kind {} (it has {})", device, kind,
        port->gid_kinds.empty() ? "none" : fmt::format("{}", fmt::join(port->gid_kinds, ", "))));
  }
  return lacks;
}

}  // namespace ppmr
