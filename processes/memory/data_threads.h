// How many threads move the memory of a tree. The number depends on the processors of the node.
// Each stage must be as fast as the fastest link, and must not take processors from the program on
// a small node. With two processors, one thread reads the memory, and two streams send it.
// bench/README.md has the cost of each stage.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ppmr {

// Threads that read the memory of a frozen tree and encrypt it, in addition to the thread for
// wanted blocks. They use half of the processors, because sending takes the other half.
inline constexpr size_t kMemoryReadersMax = 8;
constexpr size_t memory_readers(size_t processors) {
  return std::clamp<size_t>(processors / 2, 1, kMemoryReadersMax);
}

// Data connections, with a thread at each end.
inline constexpr size_t kUsualStreamsMin = 2;
inline constexpr size_t kUsualStreamsMax = 8;
constexpr size_t usual_streams(size_t processors) {
  return std::clamp<size_t>(processors / 2, kUsualStreamsMin, kUsualStreamsMax);
}

// Threads of the pager that put pages into the restored processes.
inline constexpr size_t kPageFillersMax = 16;
constexpr size_t page_fillers(size_t processors) {
  return std::clamp<size_t>(processors, 1, kPageFillersMax);
}

}  // namespace ppmr
