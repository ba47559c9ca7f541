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
#include "migration/relay/agent_requests.h"
#include "migration/relay/peer_clock.h"
#include "mount/mount_table.h"

namespace ppmr {

struct PartnerMount {
  MountEntry mount;         // of a source
  nlohmann::json endpoint;  // of the partner's agent, see parse_endpoint()
};

// These functions convert times of epochs to the partner's clock and back to ours, because the
// partner compares them with its own clock. `clock`: the difference of the partner's clock;
// nullopt: unknown, and nothing is converted. Pure.
SealedEpoch on_clock_of_partner(SealedEpoch epoch, const std::optional<PeerClock>& clock);
EpochOnDisk on_own_clock(EpochOnDisk on_disk, const std::optional<PeerClock>& clock);

// The two checkpoints of an epoch. The bytes of the checkpoint `memory` belong at `memory_offset`
// of the memory file of the run.
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
  // `first_partner`: the partner that takes over before this one (see EpochState).
  Partner(const PartnerMount& partner, std::string name, ProtectedTree tree,
          std::string first_partner = "")
      : agent_(parse_endpoint(partner.endpoint)),
        name_(std::move(name)),
        tree_(std::move(tree)),
        first_partner_(std::move(first_partner)) {}

  // Asks the partner whether this source may use the name. Returns what the partner keeps. Errors:
  // EINVAL: the version of ppmr at the partner is too old.
  Result<KeptAtPartner> open(const RunOfEpochs& run);
  // Makes the partner keep the epoch and forget the epochs before `oldest`.
  Status seal(const RunOfEpochs& run, const SealedEpoch& epoch, const ArrivedParts& parts,
              uint64_t oldest);
  // Asks the partner whether the tree may still run here. Returns the number of the newest epoch
  // that the partner keeps; 0: none.
  Result<uint64_t> contact(const std::string& run, std::chrono::milliseconds patience);
  // Makes the partner forget the epochs, because the tree has ended.
  Status close(const std::string& run);
  // What the partner's disk had at its last answer; nullopt: the partner writes no epochs to a
  // disk.
  const std::optional<EpochOnDisk>& on_disk() const { return on_disk_; }

 private:
  agent_request::OfProtection of_run(const std::string& run) const;
  Result<nlohmann::json> ask(const nlohmann::json& request, std::chrono::milliseconds patience);
  void look_at_clock();

  AgentClient agent_;
  const std::string name_;
  const ProtectedTree tree_;
  const std::string first_partner_;
  std::optional<EpochOnDisk> on_disk_;
  std::optional<PeerClock> clock_;
  std::chrono::steady_clock::time_point clock_at_;  // when clock_ was measured
};

}  // namespace ppmr
