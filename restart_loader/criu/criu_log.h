// Finds in CRIU's log why CRIU failed, and the remedy.
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

// Parses a line of CRIU's log, for example "(00.012345)  1234: Error (criu/files-reg.c:2143): File
// /x has bad size 1 (expect 2)". CRIU omits time and pid when it writes to a pipe.
CriuLine parse_criu_line(std::string_view line);

// Returns whether the line is noise: CRIU reports that it cannot raise a limit that it does not
// need.
bool is_harmless(const CriuLine& line);

// Returns the remedy for an error of CRIU: a clause without a full stop. Empty if the error is
// unknown.
std::string advice_for(std::string_view error_text);

// The errors of one run of CRIU. Threads: one.
class CriuErrors {
 public:
  void note(std::string_view line);
  bool empty() const { return errors_.empty(); }
  // Returns `"first error": remedy`, or the first error alone if the remedy is unknown. If there
  // are no errors, returns the first line, because CRIU does not mark its messages about wrong
  // options as errors. Empty if CRIU printed nothing.
  std::string summary() const;

 private:
  std::vector<std::string> errors_;  // the number of elements is bounded
  std::string first_line_;
};

}  // namespace ppmr
