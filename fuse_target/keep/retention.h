// Decides which kept checkpoints the keeper removes.
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
  size_t count = 0;             // kept checkpoints of each series; 0: no limit
  std::chrono::seconds age{0};  // since the seal; 0: no limit
  uint64_t bytes = 0;           // of all kept checkpoints; 0: no limit

  bool any() const { return count > 0 || age.count() > 0 || bytes > 0; }
};

struct RetentionCandidate {
  std::string name;
  int64_t sealed_ns = 0;  // CLOCK_REALTIME
  uint64_t bytes = 0;     // on the disk
  bool in_use = false;    // has a reader
};

// Returns the name without the number or date at its end, and without the separators before that.
// Returns an empty name if nothing else is left.
std::string series_of(const std::string& name);

// Returns the indices of the checkpoints to remove, oldest first. Never chooses the newest
// checkpoint of a series, or one that has a reader.
std::vector<size_t> choose_expired(const std::vector<RetentionCandidate>& kept,
                                   const RetentionLimits& limits, int64_t now_ns);

}  // namespace ppmr
