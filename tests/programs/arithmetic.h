// Arithmetic that the observer (tests/lab/programs.py, witness.py) repeats to verify a moved
// program.
#pragma once

#include <cstdint>

namespace ppmr_programs {

// SplitMix64's finaliser. It computes the answer to a number, and word i of random memory.
inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// One step of a chain. The step is linear, so the observer can compute step n directly.
inline uint64_t chain_step(uint64_t x) {
  return x * 6364136223846793005ull + 1442695040888963407ull;
}

// Returns word `index` of the memory made from `seed`.
inline uint64_t memory_word(uint64_t seed, uint64_t index) {
  return mix(seed ^ (index * 0xD1342543DE82EF95ull));
}

inline uint64_t digest_add(uint64_t digest, uint64_t word) {
  digest = (digest ^ word) * 0x9FB21C651E98DF25ull;
  return (digest << 29) | (digest >> 35);
}

}  // namespace ppmr_programs
