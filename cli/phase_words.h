// What a tree of a migration does at present, in one word. The progress of `migrate`, `migrations`,
// `status --watch` and JSON use the same words. The records of a target add "receiving" and
// "ready", and lost trees have "LOST", see phase_of().
//
//   waiting        for --jobs, or for other trees
//   preparing      both nodes prepare; no process was touched
//   copying        rounds copy the memory while the processes run; lines show "round 2"
//   paused         --pause has paused these rounds
//   frozen         the processes stand still: CRIU dumps them, and the rest of their memory is sent
//   restoring      the processes stand still: the target restores them
//   handing over   the processes stand still: the target is decided, and does not run them yet
//   filling        the processes run at the target, and their memory is put in place
//   moved          all memory is in place
//   stayed         the migration was aborted, and the processes continue at the source
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

// Returns the word that a line shows: "round 2" in place of "copying". `round` counts from 1; 0:
// none.
inline std::string shown(const std::string& word, uint64_t round) {
  return word == kCopying && round > 0 ? fmt::format("round {}", round) : word;
}

}  // namespace ppmr::phase
