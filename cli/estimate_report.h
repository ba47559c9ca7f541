// What `--dry-run` prints of a move that nothing stops: the target, the processes, and what the
// move is expected to take.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "migration/source/frozen_work.h"
#include "migration/source/move_estimate.h"

namespace ppmr {

struct EstimatedProcess {
  int pid = 0;
  std::string command_line;  // may have control characters
};

// Trees that move together.
struct EstimatedMove {
  std::vector<EstimatedProcess> processes;
  uint64_t memory_bytes = 0;
  std::vector<FrozenMemory> frozen;   // memory that no round can copy
  std::optional<WriteSample> sample;  // nullopt: not sampled
  // Why ppmr cannot copy memory while the processes run; empty: it can, or the move has no rounds.
  std::string why_frozen;
  MoveEstimate estimate;
};

struct EstimateReport {
  std::string target;             // "node-b at 10.0.0.2:7440"
  bool rate_is_measured = false;  // true: in an earlier move; false: the rate is assumed
  bool is_post_copy = false;
  std::optional<std::chrono::milliseconds> promised_downtime;  // nullopt: none
  std::vector<EstimatedMove> moves;
};

// Returns lines for the operator.
std::string estimate_text(const EstimateReport& report);
nlohmann::json estimate_json(const EstimateReport& report);

}  // namespace ppmr
