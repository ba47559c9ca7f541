// Answers the requests of `ppmr protect` (migration/protect) for the migration agent: the kinds
// AnyOfProtection in migration/relay/agent_requests.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "migration/epochs/epoch_store.h"
#include "migration/records/record_store.h"
#include "migration/relay/agent_requests.h"

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

  // Returns {"ok": true, ...} or a refusal.
  nlohmann::json answer(const agent_request::AnyOfProtection& request) const;

 private:
  Result<nlohmann::json> carry_out(const agent_request::EpochOpen& open) const;
  Result<nlohmann::json> carry_out(const agent_request::EpochContact& contact) const;
  Result<nlohmann::json> carry_out(const agent_request::EpochSeal& seal) const;
  Result<nlohmann::json> carry_out(const agent_request::EpochClose& close) const;
  // Locks the epochs of the tree for a request of its source. The request shows that the source is
  // alive, so this aborts a takeover that is not decided.
  Result<LockedEpochs> lock_for_source(const agent_request::OfProtection& request) const;
  Status check_replaced(const std::string& name, const ProtectedTree& tree) const;
  Status check_manager(const TreeManager& manager) const;
  static bool runs_as_unit(const EpochState& state);
  Result<std::string> control_socket() const;
  Result<uint64_t> sealed_inode(const std::string& socket, const std::string& checkpoint) const;
  void remove_failed(const std::string& name) const;
  Status keep(LockedEpochs& locked, EpochState next, const agent_request::EpochSeal& seal) const;

  const RecordStore& records_;
  const Context context_;
};

}  // namespace ppmr
