// What CRIU says about this node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Names for `criu check --feature`.
inline constexpr const char* kMemoryTrackingFeature = "mem_dirty_track";  // for pre-copy
inline constexpr const char* kLazyFeature = "uffd-noncoop";               // for a lazy restart

struct CriuFacts {
  std::string path;                   // empty: no CRIU found, all else is empty, too
  std::string version;                // "4.2.1"
  std::string problem;                // why `criu check` failed; empty: it succeeded
  std::vector<std::string> features;  // the two above, if available
};

// Asks CRIU each question once: an answer takes about 40 ms, half of it processor time, which is
// much for the many trees of an evacuation. Threads: one.
class CriuAnswers {
 public:
  // `criu`: the path from find_criu(); empty: none.
  explicit CriuAnswers(std::string criu) : criu_(std::move(criu)) {}

  const CriuFacts& facts();
  // check_processor() of cpu_check.h, for the description that came last.
  const Status& check_processor(const std::string& description);

 private:
  const std::string criu_;
  std::optional<CriuFacts> facts_;
  std::string description_;
  std::optional<Status> processor_;
};

// "Version: 4.2.1\n" -> "4.2.1".
std::string parse_criu_version(std::string_view text);

}  // namespace ppmr
