// What a tree of a migration does at present, in one word: the same in the progress of `migrate`,
// in `migrations`, in `status --watch` and in JSON.
//
//   waiting     for --jobs, or for other trees
//   preparing   both nodes prepare; no process was touched
//   copying     rounds; lines show "round 2"
//   paused      the same, paused by --pause
//   frozen      the processes stand still; CRIU describes them, and the rest of their memory is
//   sent restoring   the target restores them; they stand still filling     they run at the target,
//   and their memory is put in place moved       all of it is
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace ppmr::phase {

inline constexpr const char* kWaiting = "waiting";
inline constexpr const char* kPreparing = "preparing";
inline constexpr const char* kCopying = "copying";
inline constexpr const char* kPaused = "paused";
inline constexpr const char* kFrozen = "frozen";
inline constexpr const char* kRestoring = "restoring";
inline constexpr const char* kHandingOver = "handing over";
inline constexpr const char* kFilling = "filling";
inline constexpr const char* kMoved = "moved";
inline constexpr const char* kStayed = "stayed";

// The word for a line. `round` counts from 1; 0: none.
inline std::string shown(const std::string& word, uint64_t round) {
  return word == kCopying && round > 0 ? fmt::format("round {}", round) : word;
}

}  // namespace ppmr::phase
