#include "verbs_library/protocol/needs.h"

#include <infiniband/verbs.h>

#include <algorithm>

namespace ppmr::verbs {

std::string gid_kind(const GidEntry& entry) {
  const char* const address = is_mapped_ipv4(entry.gid)  ? "ipv4"
                              : is_link_local(entry.gid) ? "link-local"
                                                         : "other";
  const char* const type = entry.type == IBV_GID_TYPE_ROCE_V2   ? "roce-v2"
                           : entry.type == IBV_GID_TYPE_ROCE_V1 ? "roce-v1"
                                                                : "ib";
  return std::string(address) + "/" + type;
}

void add(const DeviceNeeds& more, DeviceNeeds& sum) {
  sum.queue_pairs += more.queue_pairs;
  sum.completion_queues += more.completion_queues;
  sum.shared_queues += more.shared_queues;
  sum.regions += more.regions;
  sum.domains += more.domains;
  sum.requests = std::max(sum.requests, more.requests);
  sum.shared_requests = std::max(sum.shared_requests, more.shared_requests);
  sum.completions = std::max(sum.completions, more.completions);
  sum.pieces = std::max(sum.pieces, more.pieces);
  sum.inline_bytes = std::max(sum.inline_bytes, more.inline_bytes);
  sum.mtu_bytes = std::max(sum.mtu_bytes, more.mtu_bytes);
  sum.gid_kinds.insert(more.gid_kinds.begin(), more.gid_kinds.end());
  if (sum.link_layer.empty()) sum.link_layer = more.link_layer;
}

std::string format(const DeviceNeeds& needs) {
  std::string line = "device " + needs.device;
  const auto put = [&](const char* key, uint32_t value) {
    line += std::string(" ") + key + "=" + std::to_string(value);
  };
  put("port", needs.port);
  put("queue-pairs", needs.queue_pairs);
  put("completion-queues", needs.completion_queues);
  put("shared-queues", needs.shared_queues);
  put("regions", needs.regions);
  put("domains", needs.domains);
  put("requests", needs.requests);
  put("shared-requests", needs.shared_requests);
  put("completions", needs.completions);
  put("pieces", needs.pieces);
  put("inline", needs.inline_bytes);
  put("mtu", needs.mtu_bytes);
  if (!needs.link_layer.empty()) line += " link=" + needs.link_layer;
  for (const std::string& kind : needs.gid_kinds) line += " gid=" + kind;
  return line + "\n";
}

}  // namespace ppmr::verbs
