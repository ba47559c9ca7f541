// Sends each epoch to one partner as it is captured. This node keeps no epochs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "migration/protect/epoch_place.h"

namespace ppmr {

// Removes the checkpoints that an earlier epoch of this name has left in a source mount.
void remove_leftovers(const MountEntry& mount, const std::string& name);

// Threads: one.
class PartnerPlace : public EpochPlace {
 public:
  struct Options {
    std::string name;
    ProtectedTree tree;
    // Finds the source mount, or makes it again. Called by each open().
    std::function<Result<PartnerMount>()> find;
    std::function<void(const EpochReport& report)> on_epoch;
  };
  explicit PartnerPlace(Options options) : options_(std::move(options)) {}

  Result<KeptAtPartner> open(const RunOfEpochs& run) override;
  EpochDestination destination() const override { return {found_.mount, ""}; }
  Status keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump& dump,
              uint64_t oldest) override;
  void announce(const EpochReport& report) override;
  Status contact(const std::string& run) override;
  Status close(const std::string& run) override;
  void note_end() override;

 private:
  void note();  // for `ppmr status` and the metrics

  const Options options_;
  EpochReport reported_;  // the newest
  PartnerMount found_;
  std::unique_ptr<Partner> partner_;  // none before open()
};

}  // namespace ppmr
