// Holds the shared memory that a supervisor has filled for a restore, as long as its checkpoint
// exists. If the supervisor dies, another one can restore from the same memory.
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
  // Holds these memories for a checkpoint, and releases those that it held for the checkpoint
  // before. Errors: EINVAL unless the request passes one descriptor for each memory.
  Status hold(const request::HoldMemory& request, std::vector<UniqueFd> descriptors);
  // Returns the answer to the request, and appends a descriptor for each memory. There are none if
  // no memory is held, or if it belongs to another owner. Errors: EMFILE.
  Result<nlohmann::json> lend(const request::HeldMemory& request,
                              std::vector<UniqueFd>& descriptors) const;
  void release(const std::string& checkpoint);
  // Releases the memories of all checkpoints except these. A checkpoint that was removed in the
  // mount gets no call of release().
  void release_others(const std::set<std::string>& checkpoints);

 private:
  struct Held {
    std::string owner;
    std::vector<uint64_t> inodes;
    std::vector<UniqueFd> memory;
  };
  mutable Mutex mutex_;
  std::map<std::string, Held> held_ PPMR_GUARDED_BY(mutex_);  // by name of the checkpoint
};

}  // namespace ppmr
