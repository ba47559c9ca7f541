// What CRIU reports about this node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Names for `criu check --feature`.
inline constexpr const char* kLazyFeature = "uffd-noncoop";  // a lazy restore needs it

struct CriuFacts {
  std::string path;     // empty: no CRIU was found, and all other members are empty, too
  std::string version;  // "4.2.1"
  std::string problem;  // why `criu check` failed; empty: it succeeded
  std::vector<std::string> features;  // the features above that CRIU supports
};

// Asks CRIU each question once. An answer takes about 40 ms, half of it processor time; that adds
// up for the many trees of an evacuation. Threads: one.
class CriuAnswers {
 public:
  // `criu`: the path from find_criu(); empty: there is no CRIU.
  explicit CriuAnswers(std::string criu) : criu_(std::move(criu)) {}

  const CriuFacts& facts();
  // Returns the result of check_processor() (cpu_check.h). Keeps the result for the latest
  // description.
  const Status& check_processor(const std::string& description);

 private:
  const std::string criu_;
  std::optional<CriuFacts> facts_;
  std::string description_;
  std::optional<Status> processor_;
};

// Returns the number in the output of `criu --version`: "Version: 4.2.1\n" -> "4.2.1".
std::string parse_criu_version(std::string_view text);

}  // namespace ppmr
