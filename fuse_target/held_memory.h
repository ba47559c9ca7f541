// Shared memory that a supervisor has filled for a restore. The daemon holds it with the checkpoint
// that it belongs to, so a restore can be tried again when the supervisor has died.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/control/requests.h"

namespace ppmr {

// Threads: any.
class HeldMemory {
 public:
  // Holds the memories of a checkpoint, instead of those that it had. Errors: EINVAL if their
  // number is not that of the descriptors.
  Status hold(const request::HoldMemory& request, std::vector<UniqueFd> descriptors);
  // Returns the answer, and a descriptor for each memory; none if none is held. Errors: EMFILE.
  Result<nlohmann::json> lend(const request::HeldMemory& request,
                              std::vector<UniqueFd>& descriptors) const;
  void release(const std::string& checkpoint);
  // Releases what belongs to none of these checkpoints: they can also be removed in the mount.
  void release_others(const std::set<std::string>& checkpoints);

 private:
  struct Held {
    std::string owner;
    std::vector<uint64_t> inodes;
    std::vector<UniqueFd> memory;
  };
  mutable Mutex mutex_;
  std::map<std::string, Held> held_ PPMR_GUARDED_BY(mutex_);  // by checkpoint
};

}  // namespace ppmr
