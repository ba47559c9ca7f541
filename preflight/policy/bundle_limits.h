// What the config.json of a runc bundle on this node allows its container.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/result.h"

namespace ppmr {

struct BundleLimits {
  uint64_t capabilities = 0;         // bit N: capability N
  std::set<std::string> namespaces;  // of its own, with the names of preflight/policy
};

// Errors: of the file system; EPERM if others than root may change the file; EINVAL.
Result<BundleLimits> read_bundle_limits(const std::string& bundle);

}  // namespace ppmr
