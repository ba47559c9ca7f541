// Answers the requests of `ppmr protect` (migration/protect) for the migration agent. Each request
// may be repeated.
//
//   epoch-open     before the first epoch of a run      may this source use the name?
//   epoch-contact  while nothing else is sent           is the source still the one that may run?
//   epoch-seal     when both checkpoints are sealed     keeps the epoch, removes the checkpoints
//   epoch-close    the tree has ended by itself         forgets its epochs
//
// An answer with "replaced" means that the tree runs at this node, and that the source must end its
// copy.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "migration/epochs/epoch_store.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Threads: one.
class EpochRequests {
 public:
  struct Context {
    std::string mountpoint;  // of the target's mount
    std::string peer;        // the identity of the source
    std::string audit_file;
    nlohmann::json restart_policy;
    std::string directory = kEpochsDirectory;
  };
  EpochRequests(const RecordStore& records, Context context)
      : records_(records), context_(std::move(context)) {}

  static bool knows(const std::string& operation);
  // Returns {"ok": true, ...} or a refusal. Throws nlohmann::json::exception if a field is missing.
  nlohmann::json answer(const nlohmann::json& request) const;

 private:
  Result<nlohmann::json> open(const nlohmann::json& request) const;
  Result<nlohmann::json> contact(const nlohmann::json& request) const;
  Result<nlohmann::json> seal(const nlohmann::json& request) const;
  Result<nlohmann::json> close(const nlohmann::json& request) const;
  // Locks the epochs of the tree for a request of its source. The request shows that the source is
  // alive, so this aborts a takeover that is not decided.
  Result<LockedEpochs> lock_for_source(const nlohmann::json& request) const;
  Status check_replaced(const std::string& name, const ProtectedTree& tree) const;
  Status check_manager(const TreeManager& manager) const;
  static bool runs_as_unit(const EpochState& state);
  Result<std::string> control_socket() const;
  Result<uint64_t> sealed_inode(const std::string& socket, const std::string& checkpoint) const;
  void remove_failed(const std::string& name) const;
  Status keep(LockedEpochs& locked, EpochState next, const nlohmann::json& request) const;

  const RecordStore& records_;
  const Context context_;
};

}  // namespace ppmr
