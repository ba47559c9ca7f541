// The limits that the config.json of a runc bundle on this node sets for its container.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/result.h"

namespace ppmr {

struct BundleLimits {
  uint64_t capabilities = 0;  // bit N: capability N
  // The container's own namespaces, with the names of preflight/policy.
  std::set<std::string> namespaces;
};

// Reads the limits. Errors: of the file system; EPERM if users other than root may change the file;
// EINVAL.
Result<BundleLimits> read_bundle_limits(const std::string& bundle);

}  // namespace ppmr
