// Decides how fast the keeper writes. Streams and readers need the cores and the memory bus more
// urgently, so the keeper rests while they are busy. If memory is short, it does not rest, because
// the target can give back the memory of kept checkpoints.
#pragma once

#include <algorithm>
#include <chrono>

namespace ppmr {

// Streams and readers count as busy for this time after they have used the store.
inline constexpr std::chrono::milliseconds kBusyFor{20};
// While they are busy, the keeper works for a fifth of the time.
inline constexpr int kRestFactor = 4;
inline constexpr std::chrono::milliseconds kRestMax{100};

// Returns how long the keeper rests after it has worked for `took`. `since_use`: the time since
// streams or readers used the store. `used_share`: the used part of the store's memory, 0 to 1.
inline std::chrono::nanoseconds rest_after(std::chrono::nanoseconds took,
                                           std::chrono::nanoseconds since_use, double used_share) {
  if (since_use > kBusyFor || used_share > 0.5) return {};
  return std::min<std::chrono::nanoseconds>(took * kRestFactor, kRestMax);
}

}  // namespace ppmr
