// Decides after each round of a live move whether another round follows or the tree is frozen.
//
//   expected downtime = pending bytes / measured rate + fixed part
//
//   it is within the promise, and the last round did not halve the rest    -> freeze
//   the rounds become smaller, and there is time                           -> another round
//   they do not, and the user lets the tree be slowed down                 -> another, more slowly
//   otherwise                                                              -> freeze or cancel, as
//                                                                             the user has chosen
//
// In post-copy the pending bytes travel while the tree runs at the target: they do not count.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

enum class OnTimeout {
  kFreeze,    // the tree moves, and stands still for longer than promised
  kCancel,    // the tree stays
  kPostCopy,  // this move is cancelled, and begins again as a post-copy move, if that helps
};

// The work for which a tree stands still, besides sending the memory that rounds copy.
struct FrozenWork {
  size_t processes = 1;
  size_t threads = 1;           // of all processes
  uint64_t compared_bytes = 0;  // of shared memory, with the copy at the target
  uint64_t sent_bytes = 0;      // locked memory, huge pages, memory registered for RDMA

  FrozenWork& operator+=(const FrozenWork& other);  // of trees that are frozen together
};

// Returns the time that the work takes, without the time to send `sent_bytes`. It is 0 for a tree
// of one process with one thread and no shared memory. Pure.
std::chrono::nanoseconds time_of(const FrozenWork& work);

struct LiveLimits {
  std::chrono::milliseconds max_downtime{300};
  std::chrono::milliseconds max_time{60'000};  // for all rounds
  OnTimeout on_timeout = OnTimeout::kFreeze;
  // The limit with which the rounds of one tree begin; 0: none.
  uint64_t max_rate_bytes_per_s = 0;
  // The share of one processor of the source with which the rounds begin; 0: all free time.
  uint64_t cpu_share_percent = 0;
  // The largest share of the time in which the tree may stand still during the rounds, if it writes
  // faster than its memory is sent; 0: no slow-down.
  uint64_t slow_down_percent = 0;
  bool memory_follows = false;  // post-copy
  FrozenWork frozen_work;
  // How long the tree stands still without memory to send, as measured before; nullopt: unknown.
  std::optional<std::chrono::nanoseconds> fixed_part;
  // The room at the target, as a multiple of the memory of the trees. The target keeps all rounds
  // until the trees run, and the running trees need their memory, too.
  double room_times = std::numeric_limits<double>::infinity();
};

// Returns whether the target has room for the first round, for a little more, and for the running
// tree.
bool has_room_for_rounds(const LiveLimits& limits);

// Returns whether the target has room for what the rounds have sent, for the rest that the frozen
// tree has to send, and for the running tree. If not, the frozen tree sends all of its memory
// instead, and the target keeps nothing of the rounds. `memory_bytes`: of the first round.
bool fits_with_rounds(uint64_t sent_bytes, uint64_t rest_bytes, uint64_t memory_bytes,
                      const LiveLimits& limits);

const char* to_string(OnTimeout on_timeout);
// Errors: EINVAL for a text that is not "freeze", "cancel" or "post-copy".
Result<OnTimeout> parse_on_timeout(const std::string& text);

struct Round {
  uint64_t bytes = 0;
  std::chrono::nanoseconds took{0};   // without pauses, and without rests for --cpu-share
  uint64_t max_rate_bytes_per_s = 0;  // --max-rate when it began; 0: none
  uint64_t slow_down_percent = 0;     // share of the time in which the tree stood still
};

enum class NextStep { kRound, kFreeze, kCancel };

struct RoundDecision {
  NextStep next = NextStep::kRound;
  uint64_t slow_down_percent = 0;  // of the next round
  std::chrono::milliseconds expected_downtime{0};
  std::string why;  // why the promise cannot be kept; empty: it can
};

// `pending_bytes`: written since the last round was read. `rounds` has at least one. Pure.
RoundDecision decide_round(const std::vector<Round>& rounds, uint64_t pending_bytes,
                           std::chrono::nanoseconds elapsed, const LiveLimits& limits);

}  // namespace ppmr
