#include "fuse_target/held_memory.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>

namespace ppmr {

Status HeldMemory::hold(const request::HoldMemory& request, std::vector<UniqueFd> descriptors) {
  if (descriptors.size() != request.inodes.size()) {
    return failure(EINVAL, "hold the shared memory of '" + request.checkpoint +
                               "': each memory needs a descriptor");
  }
  const MutexLock lock(mutex_);
  held_[request.checkpoint] = {request.owner, request.inodes, std::move(descriptors)};
  return {};
}

Result<nlohmann::json> HeldMemory::lend(const request::HeldMemory& request,
                                        std::vector<UniqueFd>& descriptors) const {
  nlohmann::json answer = {{"ok", true}, {"inodes", nlohmann::json::array()}};
  const MutexLock lock(mutex_);
  const auto found = held_.find(request.checkpoint);
  if (found == held_.end() || found->second.owner != request.owner) return answer;
  for (const UniqueFd& memory : found->second.memory) {
    descriptors.emplace_back(fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
    if (!descriptors.back()) {
      return system_failure("hand out the shared memory of", "'" + request.checkpoint + "'");
    }
  }
  answer["inodes"] = found->second.inodes;
  return answer;
}

void HeldMemory::release_others(const std::set<std::string>& checkpoints) {
  const MutexLock lock(mutex_);
  std::erase_if(held_, [&](const auto& held) { return !checkpoints.contains(held.first); });
}

void HeldMemory::release(const std::string& checkpoint) {
  const MutexLock lock(mutex_);
  held_.erase(checkpoint);
}

}  // namespace ppmr
