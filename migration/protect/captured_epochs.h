// Keeps the epochs of one tree in the memory of its own node, from where `ppmr protect` forwards
// them to several partners. So it captures the tree once, and a slow partner delays neither the
// capture nor another partner.
//
// They are separate from the epochs that this node keeps as a partner (kEpochsDirectory): no
// takeover uses captured epochs, and a name may stand for different processes in the two stores.
#pragma once

#include <string>

#include "migration/epochs/epoch_store.h"
#include "migration/protect/epoch_dump.h"
#include "migration/protect/partner.h"

namespace ppmr {

inline constexpr const char* kCapturedDirectory = "/run/ppmr/captured";

// Threads: read() any; the others one.
class CapturedEpochs {
 public:
  // Removes what an earlier `ppmr protect` has left under this name. Errors: those of EpochStore.
  static Result<CapturedEpochs> create(const std::string& name, const ProtectedTree& tree,
                                       const std::string& directory = kCapturedDirectory);

  const EpochStore& store() const { return store_; }
  // The file to which the next dump copies memory.
  std::string arriving() const { return arriving_; }
  Result<KeptAtPartner> kept() const;
  Result<EpochState> read() const { return store_.read(name_); }
  // Keeps the epoch `sent`, and forgets the epochs before `oldest`. Errors: those of seal_epoch().
  Status keep(const RunOfEpochs& run, const SentEpoch& sent, const std::string& images,
              uint64_t oldest) const;
  Status discard() const;

 private:
  CapturedEpochs(EpochStore store, std::string name, ProtectedTree tree, std::string arriving)
      : store_(std::move(store)),
        name_(std::move(name)),
        tree_(std::move(tree)),
        arriving_(std::move(arriving)) {}

  EpochStore store_;
  std::string name_;
  ProtectedTree tree_;
  std::string arriving_;
};

}  // namespace ppmr
