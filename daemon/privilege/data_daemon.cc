#include "daemon/privilege/data_daemon.h"

#include <unistd.h>

#include <iterator>

#include "rdma_stream/verbs/verbs_fabric.h"
#include "third_party/spdlog.h"

namespace ppmr {

bool may_use_verbs(const TransportOptions& options) {
  return options.mode != TransportMode::kTcp && ::access(kVerbsDevices, F_OK) == 0;
}

LandlockRules daemon_rules(const TransportOptions& options) {
  LandlockRules rules{.readable = {}, .writable = {"/dev/null"}};
  if (!may_use_verbs(options)) return rules;
  rules.readable.assign(std::begin(kVerbsFiles), std::end(kVerbsFiles));
  rules.writable.emplace_back(kVerbsDevices);
  return rules;
}

void warn_without_landlock(const Confinement& confinement) {
  if (confinement.landlock != 0) return;
  spdlog::warn("files are protected by permissions only, not by Landlock: {}",
               confinement.landlock_why);
}

}  // namespace ppmr
