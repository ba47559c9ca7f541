// Finds the reason of a failure in CRIU's log, and the remedy.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ppmr {

enum class CriuSeverity { kError, kWarning, kOther };

struct CriuLine {
  CriuSeverity severity = CriuSeverity::kOther;
  std::string text;  // the message, without time, pid, "Error" and source position
};

// Parses a line of CRIU's log, for example
// "(00.012345)  1234: Error (criu/files-reg.c:2143): File /x has bad size 1 (expect 2)".
// Time and pid are missing if CRIU writes to a pipe.
CriuLine parse_criu_line(std::string_view line);

// Whether the line is noise: CRIU fails to raise a limit that it does not need.
bool is_harmless(const CriuLine& line);

// The remedy for an error of CRIU: a clause without a full stop; empty if unknown.
std::string advice_for(std::string_view error_text);

// The errors of one run of CRIU. Threads: one.
class CriuErrors {
 public:
  void note(std::string_view line);
  bool empty() const { return errors_.empty(); }
  // `"first error": remedy`, or the first error alone. Without errors the first line, because CRIU
  // does not mark its messages about wrong options as errors. Empty if CRIU printed nothing.
  std::string summary() const;

 private:
  std::vector<std::string> errors_;  // bounded
  std::string first_line_;
};

}  // namespace ppmr
