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

// A report of an epoch that enough partners keep, for the user, `ppmr status` and the metrics.
struct EpochReport {
  SealedEpoch epoch;
  std::chrono::steady_clock::time_point began;
  std::chrono::milliseconds every{0};  // the planned time until the next one
  // What the partner's disk has; nullopt: the partner writes no epochs to a disk. If there are
  // several partners, only the report to the mount of each has it.
  std::optional<EpochOnDisk> on_disk = std::nullopt;
};

// Returns the request that passes the report to the source's daemon, for `ppmr status` and the
// metrics.
request::NoteEpoch to_note(const EpochReport& report, const std::string& name,
                           const ProtectedTree& tree);

// Errors of every call: EOWNERDEAD: the tree runs at a partner, and the copy here must end.
// Threads: one.
class EpochPlace {
 public:
  virtual ~EpochPlace() = default;

  // Called before the first epoch of a run, and after an epoch that failed. Returns what is kept.
  virtual Result<KeptAtPartner> open(const RunOfEpochs& run) = 0;
  // Where the next epoch goes. Valid after open().
  virtual EpochDestination destination() const = 0;
  // Keeps an epoch that was sent, and forgets the epochs before `oldest`.
  virtual Status keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump& dump,
                      uint64_t oldest) = 0;
  // Called after keep(). Reports the epoch when enough partners keep it.
  virtual void announce(const EpochReport& report) = 0;
  // Checks whether the tree may still run here.
  virtual Status contact(const std::string& run) = 0;
  // Called when the tree has ended. Forgets its epochs.
  virtual Status close(const std::string& run) = 0;
  // Called when the tree is no longer protected.
  virtual void note_end() = 0;
};

}  // namespace ppmr
