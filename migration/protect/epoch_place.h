// Where `ppmr protect` sends the epochs of a tree: to its partner, or to this node's own memory and
// from there to several partners (fan_out.h).
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "daemon/control/requests.h"
#include "migration/protect/epoch_dump.h"
#include "migration/protect/partner.h"

namespace ppmr {

// An epoch that counts, for those who watch the protection.
struct EpochReport {
  SealedEpoch epoch;
  std::chrono::steady_clock::time_point began;
  std::chrono::milliseconds every{0};  // until the next one
  // What the disk of the partner has; nullopt: it writes epochs to none. With several partners only
  // at the mount of each.
  std::optional<EpochOnDisk> on_disk = std::nullopt;
};

// For `ppmr status` and the metrics.
request::NoteEpoch to_note(const EpochReport& report, const std::string& name,
                           const ProtectedTree& tree);

// Errors of every call: EOWNERDEAD: the tree runs at a partner, and the copy here must end.
// Threads: one.
class EpochPlace {
 public:
  virtual ~EpochPlace() = default;

  // Before the first epoch of a run, and after one that has failed: returns what is kept.
  virtual Result<KeptAtPartner> open(const RunOfEpochs& run) = 0;
  // Where the next epoch goes. Valid after open().
  virtual EpochDestination destination() const = 0;
  // Keeps an epoch that is sent, and forgets those before `oldest`.
  virtual Status keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump& dump,
                      uint64_t oldest) = 0;
  // Follows keep(). Reports the epoch when it counts.
  virtual void announce(const EpochReport& report) = 0;
  // May the tree still run here?
  virtual Status contact(const std::string& run) = 0;
  // The tree has ended: its epochs are forgotten.
  virtual Status close(const std::string& run) = 0;
  // The tree is not protected any more.
  virtual void note_end() = 0;
};

}  // namespace ppmr
