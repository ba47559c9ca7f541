// `ppmr protect`: sends epochs of one running tree to its partner until the tree ends. A partner
// keeps the newest epoch (migration/epochs), and runs the tree from it if this node is lost.
//
//   open the name at the partner -> epoch -> partner keeps it -> wait -> epoch ...
//     ^                                |
//     '--------------------------------' failed: the tree runs on, and what the partner does not
//                                        have is sent again
//
// Whatever fails here, the tree runs on, with one exception: if the partner answers that it has
// taken the tree over, ppmr ends the copy here, because the tree must not run twice.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "base/mutex.h"
#include "migration/epochs/epoch_state.h"
#include "migration/protect/epoch_place.h"
#include "migration/protect/fan_out.h"

namespace ppmr {

struct ProtectionSettings {
  std::string name;
  ProtectedTree tree;
  TreeManager manager;  // a container of runc or a unit of systemd, or neither
  std::string criu;
  std::chrono::milliseconds every{30'000};
  // The mean time between failures of the node. If it is set, best_interval() replaces `every`.
  std::optional<std::chrono::milliseconds> mtbf;
  LiveLimits limits;  // max_downtime: the pause of an epoch
  unsigned keep = 1;  // how many epochs the partner keeps
  std::vector<std::string> criu_options;
  std::chrono::milliseconds seal_patience{120'000};
  // The partners. Epochs go straight to a single partner, and through this node's memory to
  // several.
  std::vector<FanOutTarget> targets;
  SealPolicy policy = SealPolicy::kAll;  // for several partners
  std::function<void(const nlohmann::json& event)> on_event;
};

inline constexpr unsigned kKeptEpochsMax = 100;
inline constexpr std::chrono::milliseconds kEpochIntervalMin{1000};
inline constexpr std::chrono::milliseconds kEpochIntervalMax{24 * 3600 * 1000};

// Returns the interval with which epochs and failures cost the least time: the square root of 2 *
// pause * MTBF (Young 1974). With a longer interval, a failure loses more work; with a shorter one,
// the process stands still more often. The result is in whole seconds, within the limits above.
// Pure.
std::chrono::milliseconds best_interval(std::chrono::milliseconds pause,
                                        std::chrono::milliseconds mtbf);

struct ProtectionEnd {
  ExitCode exit_code = ExitCode::kSuccess;
  std::string message;
};

// Returns when the next epoch begins: `every` after the last epoch began, but not before the last
// epoch ended, and soon after a failure. Pure.
std::chrono::steady_clock::time_point next_epoch_at(std::chrono::steady_clock::time_point began,
                                                    std::chrono::steady_clock::time_point ended,
                                                    bool failed, std::chrono::milliseconds every);

// How a run goes on after an epoch that has failed.
enum class RunGoesOn {
  kFromNewest,  // the partner has nothing of that epoch
  kWithEpoch,   // the partner keeps that epoch: only its answer was lost
  kNot,         // the partner keeps other pages: a new run begins
};
// `kept`: what the partner keeps now. `newest`: the last epoch of the run that was kept, whose
// pages end at `newest_end`; those of the failed epoch end at `failed_end`. Pure.
RunGoesOn judge_run(const KeptAtPartner& kept, const std::string& run, uint64_t newest,
                    uint64_t newest_end, uint64_t failed_end);

// Threads: one calls run(); any may set `stop`.
class Protection {
 public:
  Protection(const ProtectionSettings& settings, const std::atomic<bool>& stop)
      : settings_(settings),
        stop_(stop),
        every_(settings.every),
        manager_(settings.manager),
        criu_options_(settings.criu_options),
        limits_(settings.limits) {}
  // Returns when the tree has ended, when it was taken over, or on `stop`. The partner keeps the
  // newest epoch, unless the tree has ended by itself.
  ProtectionEnd run();

 private:
  struct Run;

  // Why the protection ends. Only ends() sets it, where the code knows the reason. An errno would
  // not be enough: other steps fail with the same errno, and kReplaced ends the tree.
  enum class Ending { kReplaced, kTreeEnded, kInterrupted, kRefused };

  tl::unexpected<Error> ends(Ending why, std::string message);
  bool has_one_partner() const { return settings_.targets.size() == 1; }
  Status make_place();
  RunOfEpochs describe(const Run& run) const;
  Result<KeptAtPartner> open(const Run& run);
  Result<std::unique_ptr<Run>> begin_run();
  // Called after a failed epoch. Ends the run if the run cannot go on.
  Status go_on_with(std::unique_ptr<Run>& run);
  // Notes what has changed in the container or the unit since the last epoch. Errors: the reason
  // why the next epoch would not be complete.
  Status look_at_manager();
  Status send_epoch(Run& run);
  // Waits until the next epoch, and contacts the partner at intervals. Errors: those that set
  // `ending_`.
  Status wait_until(std::chrono::steady_clock::time_point next, Run* run);
  Status check_tree();
  ProtectionEnd end(const Error& error, Run* run);
  ProtectionEnd finish(const Error& error, Run* run);
  ProtectionEnd end_own_copy(const std::string& why);
  Status kill_own_copy() const;
  // Returns the answer of the partner. Ends the protection if the answer says that the tree runs
  // there.
  template <typename T>
  Result<T> answered(Result<T> answer);
  // Threads: any.
  void report_event(nlohmann::json event) const PPMR_EXCLUDES(events_mutex_);
  // `partners`: the epoch of each of several partners; null if there is only one.
  void report_epoch(const EpochReport& report, const nlohmann::json& partners) const;
  void warn(const std::string& sentence) const;

  const ProtectionSettings& settings_;
  const std::atomic<bool>& stop_;
  mutable Mutex events_mutex_;
  std::unique_ptr<EpochPlace> place_;  // none before the first run
  std::optional<Ending> ending_;
  std::chrono::milliseconds every_;
  TreeManager manager_;
  std::vector<std::string> criu_options_;
  LiveLimits limits_;      // with the fixed part of the last pause
  uint64_t number_ = 0;    // of the newest epoch that the partner keeps
  bool has_sent_ = false;  // true: this process has sent an epoch
};

}  // namespace ppmr
