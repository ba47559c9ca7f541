// Which kept checkpoints are removed. Decides only; the keeper acts.
//
// Names in the mount are unique, so "the newest of a name" needs a series: names that differ only
// in the number or date at their end (db.1, db.2; db-2026-11-28) are one series.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ppmr {

struct RetentionLimits {
  size_t count = 0;             // of each series; 0: no limit
  std::chrono::seconds age{0};  // since the seal; 0: no limit
  uint64_t bytes = 0;           // of all together; 0: no limit

  bool any() const { return count > 0 || age.count() > 0 || bytes > 0; }
};

struct RetentionCandidate {
  std::string name;
  int64_t sealed_ns = 0;  // CLOCK_REALTIME
  uint64_t bytes = 0;     // on the disk
  bool in_use = false;    // has a reader
};

// Returns the name without the number or date at its end, and the separators before it. A name that
// is only that is a series with the empty name.
std::string series_of(const std::string& name);

// Returns the indices of the checkpoints to remove, oldest first. Never the newest of a series, and
// none that has a reader.
std::vector<size_t> choose_expired(const std::vector<RetentionCandidate>& kept,
                                   const RetentionLimits& limits, int64_t now_ns);

}  // namespace ppmr
