// Estimates a move before it begins (`--dry-run`). Simulates the rounds of live_rounds.h with the
// writes of a sample, so that the estimate decides as the move does.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "migration/records/ownership_record.h"
#include "migration/source/live_rounds.h"
#include "processes/memory/write_sample.h"

namespace ppmr {

struct EstimateInput {
  uint64_t memory_bytes = 0;          // all that the trees need at the target
  std::optional<WriteSample> sample;  // nullopt: nothing is copied while they run
  double rate_bytes_per_s = 0;        // of the way to the target; 0: unknown
  LiveLimits limits;                  // its frozen_work.sent_bytes is a minimum
};

struct MoveEstimate {
  uint64_t sent_bytes = 0;
  unsigned rounds = 0;
  double rate_bytes_per_s = 0;            // the assumed rate
  std::chrono::milliseconds time{0};      // of the whole move, until all memory is there
  std::chrono::milliseconds downtime{0};  // from the freeze until the processes run
  bool stays = false;                     // the trees stay (--on-timeout cancel)
  std::string why_post_copy;  // why the move begins again with --post-copy; empty: it does not
  std::string why;            // why the promise cannot be kept; empty: it can
  bool is_crowd = false;      // most of the downtime is for the number of processes and threads
};

// Pure.
MoveEstimate estimate_move(const EstimateInput& input);

// Returns how many bytes the trees write within a time. Between two looks of the sample, and beyond
// the last one, the bytes grow evenly, up to all memory. Pure.
uint64_t written_within(const WriteSample& sample, std::chrono::nanoseconds time);

// Returns the sum of the writes of trees that move together. Pure.
WriteSample sum_of(const std::vector<WriteSample>& samples);

// Returns the rate, in bytes per second, of the newest live move with enough memory to the target
// at this address; 0: there is none. `records`: oldest first, without moves that --max-rate
// limited. Pure.
double rate_of_earlier_moves(const std::vector<OwnershipRecord>& records,
                             const std::string& target);

}  // namespace ppmr
