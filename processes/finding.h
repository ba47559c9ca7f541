// One result of the checks before a migration.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ppmr {

enum class Severity { kStops, kWarns };

struct Finding {
  Severity severity = Severity::kStops;
  std::string sentence;  // the problem, without a full stop
  std::string remedy;    // advice to the operator, without a full stop; empty: none
};

inline bool stops(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kStops) return true;
  }
  return false;
}

// Returns "sentence: remedy".
inline std::string text_of(const Finding& finding) {
  return finding.remedy.empty() ? finding.sentence : finding.sentence + ": " + finding.remedy;
}

// Returns "a, b and 7 more".
std::string list_of(const std::vector<std::string>& items);
std::string list_of(const std::vector<pid_t>& pids);

}  // namespace ppmr
