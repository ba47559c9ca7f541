// How fast the keeper writes. Decides only. Streams and readers need the cores and the memory bus
// more urgently; but if memory is short, kept checkpoints are what gives it back.
#pragma once

#include <algorithm>
#include <chrono>

namespace ppmr {

// Streams and readers count as busy for this time after they have used the store.
inline constexpr std::chrono::milliseconds kBusyFor{20};
// Beside busy ones the keeper works for a fifth of the time.
inline constexpr int kRestFactor = 4;
inline constexpr std::chrono::milliseconds kRestMax{100};

// Returns how long the keeper rests after a piece that took `took`. `used_share`: the part of the
// store's memory that is used.
inline std::chrono::nanoseconds rest_after(std::chrono::nanoseconds took,
                                           std::chrono::nanoseconds since_use, double used_share) {
  if (since_use > kBusyFor || used_share > 0.5) return {};
  return std::min<std::chrono::nanoseconds>(took * kRestFactor, kRestMax);
}

}  // namespace ppmr
