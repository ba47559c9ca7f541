// The result of one check of a node.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

enum class Level { kOk, kWarning, kProblem };

inline const char* to_string(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      break;
  }
  return "problem";
}

struct Diagnosis {
  std::string check;  // "kernel", "criu", ... : stays the same in later versions
  Level level = Level::kOk;
  std::string message;  // a sentence without a full stop
  std::string remedy;   // a sentence without a full stop; empty if the operator need not act

  bool operator==(const Diagnosis&) const = default;
};

using Diagnoses = std::vector<Diagnosis>;

inline Diagnosis ok(std::string check, std::string message) {
  return {std::move(check), Level::kOk, std::move(message), ""};
}
inline Diagnosis warning(std::string check, std::string message, std::string remedy) {
  return {std::move(check), Level::kWarning, std::move(message), std::move(remedy)};
}
inline Diagnosis problem(std::string check, std::string message, std::string remedy) {
  return {std::move(check), Level::kProblem, std::move(message), std::move(remedy)};
}

}  // namespace ppmr
