// What CRIU's lines say: which of them is the reason of a failure, and what to do about it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ppmr {

enum class CriuSeverity { kError, kWarning, kOther };

struct CriuLine {
  CriuSeverity severity = CriuSeverity::kOther;
  std::string text;  // without time, pid, "Error" and the place in CRIU's sources
};

// "(00.012345)  1234: Error (criu/files-reg.c:2143): File /x has bad size 1 (expect 2)"; time and
// pid are missing where CRIU writes to a pipe.
CriuLine parse_criu_line(std::string_view line);

// Whether this line means nothing to anybody: CRIU tries to raise a limit that it does not need.
bool is_harmless(const CriuLine& line);

// What the user can do about an error of CRIU's: a clause without a full stop; empty when unknown.
std::string advice_for(std::string_view error_text);

// The errors of one run of CRIU. Threads: one.
class CriuErrors {
 public:
  void note(std::string_view line);
  bool empty() const { return errors_.empty(); }
  // `"the first error": what to do about it`, or the first error alone. Without errors its first
  // line (CRIU's complaints about options are no errors to it); empty when it said nothing.
  std::string summary() const;

 private:
  std::vector<std::string> errors_;  // the first few
  std::string first_line_;
};

}  // namespace ppmr
