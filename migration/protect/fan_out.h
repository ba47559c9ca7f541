// Serves several partners. `ppmr protect` captures each epoch once, into the memory of this node
// (captured_epochs.h). A thread for each partner forwards the newest epoch.
//
//   captured epochs  1  2  3  4  5          the tree runs again after its capture
//                          |     |
//   partner two            |     '--> 5     what it does not have of epoch 5
//   partner three          '--> 3           slow: gets 5 next, and what 4 and 5 have changed
//   partner four                            dead: tried again every few seconds
//
// A slow or dead partner delays neither the capture nor another partner. When it is back, it gets
// the newest epoch as the difference to the epoch that it keeps, or all memory if it keeps none.
//
// An epoch stays in this node's memory while a thread forwards it. So a slow partner costs the
// memory of the pages that change in that time.
//
// Rejected: to write each page into the source mounts of all partners as it is read. A full pool of
// one partner would hold the frozen tree. A partner that was away lacks pages that the others have,
// so all memory would be read and sent again. Also rejected: the first partner forwards epochs to
// the others. If it dies, the others get no epochs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "migration/protect/captured_epochs.h"
#include "migration/protect/epoch_place.h"
#include "migration/protect/seal_policy.h"

namespace ppmr {

struct FanOutTarget {
  std::string name;  // for people
  std::function<Result<PartnerMount>()> find;
  // Makes the remaining checks before the first epoch; empty: none remain. After an error, FanOut
  // calls it again later.
  std::function<Status()> check;
};

struct FanOutOptions {
  std::string name;
  ProtectedTree tree;
  std::vector<FanOutTarget> targets;  // the first one takes over before the others
  SealPolicy policy = SealPolicy::kAll;
  unsigned keep = 1;  // how many epochs each partner keeps
  std::chrono::milliseconds retry_after{5000};
  std::chrono::milliseconds seal_patience{120'000};
  std::string directory = kCapturedDirectory;
  // FanOut calls these in any of its threads, but never in two at once. They must not call the
  // FanOut.
  std::function<void(const EpochReport& report, const nlohmann::json& partners)> on_epoch;
  std::function<void(const nlohmann::json& event)> on_event;
};

// Threads: one owner. The object starts one thread for each target, and these threads end with the
// object. The destructor waits for the end of requests to partners and mounts.
class FanOut : public EpochPlace {
 public:
  static Result<std::unique_ptr<FanOut>> create(FanOutOptions options);
  ~FanOut() override;

  Result<KeptAtPartner> open(const RunOfEpochs& run) override;
  EpochDestination destination() const override { return {{}, captured_.arriving()}; }
  Status keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump& dump,
              uint64_t oldest) override PPMR_EXCLUDES(mutex_);
  void announce(const EpochReport& report) override PPMR_EXCLUDES(mutex_);
  Status contact(const std::string& run) override PPMR_EXCLUDES(mutex_);
  Status close(const std::string& run) override PPMR_EXCLUDES(mutex_);
  void note_end() override PPMR_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Work { kForward, kContact, kNote, kEnd };
  struct Target {
    FanOutTarget options;
    std::string first_partner;  // the partner that takes over before it; empty: none
    // Only the target's thread uses these. They are empty until it has reached the partner.
    std::optional<PartnerMount> mount;
    std::unique_ptr<Partner> partner;
    // The epoch that is being forwarded, and the state of the captured epochs at its beginning.
    EpochReport sending;
    Result<EpochState> state;
    bool is_checked = false;
    uint64_t noted = 0;  // the epoch that the daemon of its mount shows
    std::optional<EpochOnDisk> noted_on_disk;
    // Guarded by mutex_.
    EpochReport kept;          // at the partner
    uint64_t in_use = 0;       // the captured epoch that is being forwarded; 0: none
    Clock::time_point try_at;  // after a failure
    Clock::time_point contact_at;
    std::string told;  // the last failure
  };

  FanOut(FanOutOptions options, CapturedEpochs captured);
  void serve(Target& target) PPMR_EXCLUDES(mutex_);
  Work await_work(Target& target) PPMR_EXCLUDES(mutex_);
  std::optional<Work> next_work(Target& target) PPMR_REQUIRES(mutex_);
  Status do_work(Target& target, Work work) PPMR_EXCLUDES(mutex_);
  Status reach(Target& target);
  Status forward(Target& target) PPMR_EXCLUDES(mutex_);
  Status contact_one(Target& target) PPMR_EXCLUDES(mutex_);
  void note(Target& target) PPMR_EXCLUDES(mutex_);
  Status end(Target& target) PPMR_EXCLUDES(mutex_);
  void note_failure(Target& target, Work work, const Error& error) PPMR_EXCLUDES(mutex_);
  EpochReport sealed() const PPMR_REQUIRES(mutex_);
  void report_sealed() PPMR_REQUIRES(mutex_);
  void stop() PPMR_EXCLUDES(mutex_);

  const FanOutOptions options_;
  const CapturedEpochs captured_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Target>> targets_;
  EpochReport newest_ PPMR_GUARDED_BY(mutex_);
  std::string run_ PPMR_GUARDED_BY(mutex_);
  EpochReport counted_ PPMR_GUARDED_BY(mutex_);    // the epoch that counts now
  uint64_t reported_ PPMR_GUARDED_BY(mutex_) = 0;  // the newest epoch reported
  bool is_held_ PPMR_GUARDED_BY(mutex_) = false;   // no forwarding begins
  bool stops_ PPMR_GUARDED_BY(mutex_) = false;
  bool closes_ PPMR_GUARDED_BY(mutex_) = false;  // the tree has ended
  std::optional<std::string> replaced_ PPMR_GUARDED_BY(mutex_);
  std::vector<std::string> unclosed_ PPMR_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace ppmr
