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
  std::vector<FrozenMemory> frozen;   // which no round can copy
  std::optional<WriteSample> sample;  // nullopt: not sampled
  std::string
      why_frozen;  // why nothing is copied while they run; empty: it is, or was not asked for
  MoveEstimate estimate;
};

struct EstimateReport {
  std::string target;             // "node-b at 10.0.0.2:7440"
  bool rate_is_measured = false;  // in an earlier move; otherwise it is assumed
  bool is_post_copy = false;
  std::optional<std::chrono::milliseconds> promised_downtime;  // nullopt: none
  std::vector<EstimatedMove> moves;
};

// Lines for the operator.
std::string estimate_text(const EstimateReport& report);
nlohmann::json estimate_json(const EstimateReport& report);

}  // namespace ppmr
