// The requests of a source to the partner of one protected tree (migration/target/epoch_requests).
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "migration/epochs/epoch_on_disk.h"
#include "migration/epochs/epoch_state.h"
#include "migration/relay/agent_client.h"
#include "migration/relay/peer_clock.h"
#include "mount/mount_table.h"

namespace ppmr {

struct PartnerMount {
  MountEntry mount;         // of a source
  nlohmann::json endpoint;  // of the partner's agent, see parse_endpoint()
};

// The partner compares the times of epochs with its own clock. So they travel on that clock, and
// come back on ours. `clock`: of the partner; nullopt: unknown. Pure.
SealedEpoch on_clock_of_partner(SealedEpoch epoch, const std::optional<PeerClock>& clock);
EpochOnDisk on_own_clock(EpochOnDisk on_disk, const std::optional<PeerClock>& clock);

// Where the memory of an epoch is: `bytes` of the checkpoint `memory` belong at `offset` of the
// memory file of the run.
struct ArrivedParts {
  std::string images;  // names of checkpoints, both sealed
  std::string memory;
  uint64_t memory_offset = 0;
};

// What all epochs of a run have in common.
struct RunOfEpochs {
  std::string id;
  std::vector<std::string> criu_options;
  TreeManager manager;
  bool rolls_back = false;  // see EpochState
};

// What the partner keeps.
struct KeptAtPartner {
  uint64_t newest = 0;  // 0: nothing
  std::string run;
  uint64_t memory_end = 0;  // of the newest, in the memory file of the run
};

// Errors of every request: EOWNERDEAD: the tree runs at the partner, and the copy here must end;
// the partner's refusals; those of AgentClient. Threads: one.
class Partner {
 public:
  // `first_partner`: who takes over before this one (see EpochState).
  Partner(const PartnerMount& partner, std::string name, ProtectedTree tree,
          std::string first_partner = "")
      : agent_(parse_endpoint(partner.endpoint)),
        name_(std::move(name)),
        tree_(std::move(tree)),
        first_partner_(std::move(first_partner)) {}

  // May this source use the name? Errors: EINVAL: the version at the partner is too old.
  Result<KeptAtPartner> open(const RunOfEpochs& run);
  // The partner keeps the epoch, and forgets those before `oldest`.
  Status seal(const RunOfEpochs& run, const SealedEpoch& epoch, const ArrivedParts& parts,
              uint64_t oldest);
  // May the tree still run here? Returns the number of the newest epoch that is kept; 0: none.
  Result<uint64_t> contact(const std::string& run, std::chrono::milliseconds patience);
  // The tree has ended: the partner forgets its epochs.
  Status close(const std::string& run);
  // What its disk had at its last answer; nullopt: it writes epochs to none.
  const std::optional<EpochOnDisk>& on_disk() const { return on_disk_; }

 private:
  Result<nlohmann::json> ask(nlohmann::json request, std::chrono::milliseconds patience);
  void look_at_clock();

  AgentClient agent_;
  const std::string name_;
  const ProtectedTree tree_;
  const std::string first_partner_;
  std::optional<EpochOnDisk> on_disk_;
  std::optional<PeerClock> clock_;
  std::chrono::steady_clock::time_point clock_at_;  // when it was asked for
};

}  // namespace ppmr
