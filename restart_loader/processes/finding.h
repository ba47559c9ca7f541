// What was found before a move that would stop it, or that its user should know.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

enum class Severity { kStops, kWarns };

struct Finding {
  Severity severity = Severity::kStops;
  std::string sentence;  // what is the matter, without a full stop
  std::string remedy;  // what to do about it: a clause without a full stop; empty when nothing can
};

inline bool stops(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kStops) return true;
  }
  return false;
}

// "sentence: remedy".
inline std::string text_of(const Finding& finding) {
  return finding.remedy.empty() ? finding.sentence : finding.sentence + ": " + finding.remedy;
}

}  // namespace ppmr
